//! What the standard `OTEL_*` variables ask for, as far as the exporter decides it: which exporters, which protocol, how
//! long, how many at a time. Endpoints, headers and the rest are read where the protocol is spoken.
//!
//! A value that is not supported is refused: what is silently taken for something else sends nothing, or to nobody.

use std::time::Duration;

use super::spans::TEXT_BYTES;

/// Where a signal goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Exporter {
    /// To a collector.
    Otlp(Protocol),
    /// To stdout.
    Console,
    /// Nowhere.
    None,
}

/// How a collector is spoken to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Protocol {
    /// Protobuf over HTTP.
    Http,
    /// gRPC.
    Grpc,
}

/// A variable that can't be followed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{name} is {value:?}, and {may}")]
pub struct Unsupported {
    /// The variable.
    pub name: &'static str,
    /// What it holds.
    pub value: String,
    /// What it may hold.
    pub may: &'static str,
}

/// The settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Settings {
    pub(super) traces: Exporter,
    pub(super) metrics: Exporter,
    pub(super) traces_timeout: Duration,
    pub(super) metrics_timeout: Duration,
    pub(super) traces_tls: TlsFiles,
    pub(super) metrics_tls: TlsFiles,
    /// Spans of one request.
    pub(super) batch_max: usize,
    /// How long spans may wait for others.
    pub(super) delay: Duration,
    pub(super) text_bytes_max: usize,
}

/// A file that a variable names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Named {
    pub(super) variable: &'static str,
    pub(super) path: String,
}

impl Named {
    /// What is wrong with the file, and which variable to set right.
    pub(super) fn refused(&self, why: &str) -> String {
        format!("{} names {:?}, which {why}", self.variable, self.path)
    }
}

/// The files of a signal's connections over TLS.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct TlsFiles {
    /// What a collector's certificate is checked against, in place of the system's roots of trust.
    pub(super) roots: Option<Named>,
    /// A certificate of our own and its key, for a collector that asks who we are.
    pub(super) client: Option<(Named, Named)>,
}

/// A signal, and its own name in a variable's.
#[derive(Debug, Clone, Copy)]
struct Signal {
    exporter: &'static str,
    protocol: &'static str,
    timeout: &'static str,
    tls: [&'static str; 3],
}

const TRACES: Signal = Signal {
    exporter: "OTEL_TRACES_EXPORTER",
    protocol: "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL",
    timeout: "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT",
    tls: [
        "OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE",
        "OTEL_EXPORTER_OTLP_TRACES_CLIENT_CERTIFICATE",
        "OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY",
    ],
};

const METRICS: Signal = Signal {
    exporter: "OTEL_METRICS_EXPORTER",
    protocol: "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL",
    timeout: "OTEL_EXPORTER_OTLP_METRICS_TIMEOUT",
    tls: [
        "OTEL_EXPORTER_OTLP_METRICS_CERTIFICATE",
        "OTEL_EXPORTER_OTLP_METRICS_CLIENT_CERTIFICATE",
        "OTEL_EXPORTER_OTLP_METRICS_CLIENT_KEY",
    ],
};

const BOTH_TLS: [&str; 3] = [
    "OTEL_EXPORTER_OTLP_CERTIFICATE",
    "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE",
    "OTEL_EXPORTER_OTLP_CLIENT_KEY",
];

impl Settings {
    /// Reads the settings; `variable` gives what a variable holds.
    pub(super) fn of(variable: impl Fn(&str) -> Option<String>) -> Result<Settings, Unsupported> {
        let from = Variables(variable);
        let off = from.get("OTEL_SDK_DISABLED").filter(|value| value.eq_ignore_ascii_case("true"));
        if let Some(value) = off {
            let may = "nothing would be sent: unset it, or don't export";
            return Err(Unsupported { name: "OTEL_SDK_DISABLED", value, may });
        }
        let (traces, metrics) = (from.exporter(TRACES)?, from.exporter(METRICS)?);
        Ok(Settings {
            traces,
            metrics,
            traces_timeout: from.timeout(TRACES)?,
            metrics_timeout: from.timeout(METRICS)?,
            traces_tls: from.tls(TRACES, traces)?,
            metrics_tls: from.tls(METRICS, metrics)?,
            batch_max: from.number(&["OTEL_BSP_MAX_EXPORT_BATCH_SIZE"], 512)?.clamp(1, 65_536),
            delay: from.millis(&["OTEL_BSP_SCHEDULE_DELAY"], 5_000)?,
            text_bytes_max: from.number(
                &["OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT", "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT"],
                TEXT_BYTES,
            )?,
        })
    }
}

struct Variables<F>(F);

impl<F: Fn(&str) -> Option<String>> Variables<F> {
    /// A variable that is set to nothing is not set.
    fn get(&self, name: &str) -> Option<String> {
        (self.0)(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty())
    }

    /// The first that is set.
    fn first(&self, names: &[&'static str]) -> Option<(&'static str, String)> {
        names.iter().find_map(|name| Some((*name, self.get(name)?)))
    }

    fn exporter(&self, signal: Signal) -> Result<Exporter, Unsupported> {
        let kind = self.get(signal.exporter).unwrap_or_else(|| "otlp".to_owned());
        match kind.to_ascii_lowercase().as_str() {
            "otlp" => Ok(Exporter::Otlp(self.protocol(signal)?)),
            "console" => Ok(Exporter::Console),
            "none" => Ok(Exporter::None),
            _ => Err(Unsupported {
                name: signal.exporter,
                value: kind,
                may: "it may be otlp, console or none",
            }),
        }
    }

    fn protocol(&self, signal: Signal) -> Result<Protocol, Unsupported> {
        let Some((name, value)) = self.first(&[signal.protocol, "OTEL_EXPORTER_OTLP_PROTOCOL"]) else {
            return Ok(Protocol::Http);
        };
        match value.to_ascii_lowercase().as_str() {
            "http/protobuf" => Ok(Protocol::Http),
            "grpc" => Ok(Protocol::Grpc),
            _ => Err(Unsupported { name, value, may: "it may be http/protobuf or grpc" }),
        }
    }

    fn timeout(&self, signal: Signal) -> Result<Duration, Unsupported> {
        self.millis(&[signal.timeout, "OTEL_EXPORTER_OTLP_TIMEOUT"], 10_000)
    }

    fn tls(&self, signal: Signal, exporter: Exporter) -> Result<TlsFiles, Unsupported> {
        if !matches!(exporter, Exporter::Otlp(_)) {
            return Ok(TlsFiles::default());
        }
        let [roots, certificate, key] = [0, 1, 2].map(|at| {
            self.first(&[signal.tls[at], BOTH_TLS[at]]).map(|(variable, path)| Named { variable, path })
        });
        let alone = |named: Named, may| Err(Unsupported { name: named.variable, value: named.path, may });
        let client = match (certificate, key) {
            (Some(certificate), Some(key)) => Some((certificate, key)),
            (None, None) => None,
            (Some(certificate), None) => {
                return alone(
                    certificate,
                    "it needs the key that belongs to it: set the variable of the client key",
                );
            }
            (None, Some(key)) => {
                return alone(key, "it needs its certificate: set the variable of the client certificate");
            }
        };
        Ok(TlsFiles { roots, client })
    }

    fn millis(&self, names: &[&'static str], default: u64) -> Result<Duration, Unsupported> {
        self.parsed(names, "it may be a whole number of milliseconds")
            .map(|millis| Duration::from_millis(millis.unwrap_or(default)))
    }

    fn number(&self, names: &[&'static str], default: usize) -> Result<usize, Unsupported> {
        self.parsed(names, "it may be a whole number").map(|number| number.unwrap_or(default))
    }

    fn parsed<T: std::str::FromStr>(
        &self,
        names: &[&'static str],
        may: &'static str,
    ) -> Result<Option<T>, Unsupported> {
        let Some((name, value)) = self.first(names) else { return Ok(None) };
        match value.parse() {
            Ok(number) => Ok(Some(number)),
            Err(_) => Err(Unsupported { name, value, may }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(set: &[(&str, &str)]) -> Result<Settings, Unsupported> {
        Settings::of(|name| {
            set.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn without_variables_both_signals_go_to_a_collector_by_protobuf_over_http() {
        let settings = of(&[]).unwrap();
        assert_eq!(settings.traces, Exporter::Otlp(Protocol::Http));
        assert_eq!(settings.metrics, settings.traces);
        assert_eq!(
            (settings.traces_timeout, settings.delay),
            (Duration::from_secs(10), Duration::from_secs(5))
        );
        assert_eq!((settings.batch_max, settings.text_bytes_max), (512, 1_024));
        assert_eq!(
            of(&[("OTEL_TRACES_EXPORTER", " "), ("OTEL_EXPORTER_OTLP_PROTOCOL", "")]).unwrap(),
            settings
        );
    }

    #[test]
    fn a_signal_s_own_variable_goes_before_the_one_for_both() {
        let settings = of(&[
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
            ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/protobuf"),
            ("OTEL_METRICS_EXPORTER", "Console"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "500"),
            ("OTEL_EXPORTER_OTLP_METRICS_TIMEOUT", "700"),
            ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "7"),
            ("OTEL_BSP_SCHEDULE_DELAY", "200"),
            ("OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT", "99"),
        ]);
        assert_eq!(
            settings.unwrap(),
            Settings {
                traces: Exporter::Otlp(Protocol::Http),
                metrics: Exporter::Console,
                traces_timeout: Duration::from_millis(500),
                metrics_timeout: Duration::from_millis(700),
                traces_tls: TlsFiles::default(),
                metrics_tls: TlsFiles::default(),
                batch_max: 7,
                delay: Duration::from_millis(200),
                text_bytes_max: 99,
            }
        );
        assert_eq!(
            of(&[("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")]).unwrap().traces,
            Exporter::Otlp(Protocol::Grpc)
        );
        assert_eq!(of(&[("OTEL_TRACES_EXPORTER", "none")]).unwrap().traces, Exporter::None);
    }

    #[test]
    fn what_is_not_supported_is_refused_by_name() {
        for (name, value) in [
            ("OTEL_TRACES_EXPORTER", "zipkin"),
            ("OTEL_METRICS_EXPORTER", "prometheus"),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "10s"),
            ("OTEL_BSP_SCHEDULE_DELAY", "-1"),
            ("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", "our.pem"),
            ("OTEL_EXPORTER_OTLP_METRICS_CLIENT_KEY", "key.pem"),
            ("OTEL_SDK_DISABLED", "True"),
        ] {
            let refused = of(&[(name, value)]).unwrap_err();
            assert_eq!((refused.name, refused.value.as_str()), (name, value));
            assert!(refused.to_string().starts_with(&format!("{name} is {value:?}, and ")), "{refused}");
        }
        assert!(of(&[("OTEL_SDK_DISABLED", "false")]).is_ok());
    }

    #[test]
    fn each_file_of_a_signal_is_its_own_variable_s_or_the_one_for_both() {
        let named = |variable, path: &str| Named { variable, path: path.to_owned() };
        let settings = of(&[
            ("OTEL_EXPORTER_OTLP_CERTIFICATE", "ca.pem"),
            ("OTEL_EXPORTER_OTLP_METRICS_CERTIFICATE", "other.pem"),
            ("OTEL_EXPORTER_OTLP_TRACES_CLIENT_CERTIFICATE", "our.pem"),
            ("OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY", "key.pem"),
        ])
        .unwrap();
        let client = (
            named("OTEL_EXPORTER_OTLP_TRACES_CLIENT_CERTIFICATE", "our.pem"),
            named("OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY", "key.pem"),
        );
        let roots = Some(named("OTEL_EXPORTER_OTLP_CERTIFICATE", "ca.pem"));
        assert_eq!(settings.traces_tls, TlsFiles { roots, client: Some(client) });
        let roots = Some(named("OTEL_EXPORTER_OTLP_METRICS_CERTIFICATE", "other.pem"));
        assert_eq!(settings.metrics_tls, TlsFiles { roots, client: None });
    }
}
