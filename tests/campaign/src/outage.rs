//! A world and its power: what was handed on as evidence, and what is left after an outage for whoever comes back.

use std::fs;
use std::path::PathBuf;
use std::process::Stdio;

use serde_json::{Value, json};

use crate::checker::Head;
use crate::clock::Rng;
use crate::power;
use crate::world::World;

impl World {
    /// Has the product say what the chain's head is, as evidence that is kept elsewhere.
    pub(crate) fn keep_head(&mut self) -> Result<(), String> {
        let mut command = self.program(&self.programs().holdpoint, None);
        command.arg("--db").arg(self.database()).args(["--json", "verify"]).stdin(Stdio::null());
        let output = command.output().map_err(|error| format!("verify: {error}"))?;
        let told: Value = serde_json::from_slice(&output.stdout)
            .map_err(|_| format!("verify: {}", String::from_utf8_lossy(&output.stderr)))?;
        let (seq, hash) = (told["head"]["seq"].as_i64(), told["head"]["hash"].as_str());
        let (Some(seq), Some(hash)) = (seq, hash) else { return Err(format!("verify told no head: {told}")) };
        self.heads.push(Head { seq, hash: hash.to_owned(), mark: self.mark() });
        Ok(())
    }

    /// The power goes when nobody is left, and comes back: the files are what a disk may have kept. Whatever could not be
    /// lost by then can't be lost any more, and what could is asked for no more.
    pub(crate) fn lose_power(&mut self, rng: &mut Rng) -> Result<(), String> {
        let kept = power::kept(&self.recording(), rng)?;
        let beside = |suffix: &str| PathBuf::from(format!("{}{suffix}", self.database().display()));
        for (suffix, bytes) in ["", "-wal"].into_iter().zip(&kept) {
            fs::write(beside(suffix), bytes).map_err(|error| format!("after the outage: {error}"))?;
        }
        fs::remove_file(beside("-shm")).map_err(|error| format!("after the outage: {error}"))?;
        power::begin(&self.recording(), &kept)?;
        self.told.retain(|told| told.mark < u64::MAX);
        self.told.iter_mut().for_each(|told| told.mark = 0);
        self.decided.iter_mut().for_each(|decided| decided.mark = 0);
        self.heads.iter_mut().for_each(|head| head.mark = 0);
        for server in ["bank", "petty"] {
            let ledger = self.ledger(server);
            let before = fs::read_to_string(&ledger).unwrap_or_default();
            let lines = before.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
            let long_ago = |mut line: Value| {
                line["mark"] = json!(0);
                format!("{line}\n")
            };
            let after: String = lines.map(long_ago).collect();
            fs::write(&ledger, after).map_err(|error| format!("{}: {error}", ledger.display()))?;
        }
        Ok(())
    }
}
