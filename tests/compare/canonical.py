"""Canonical JSON, the event chain and the approval hash, written again from the specification's words.

Nothing here is shared with the programs under test: that they agree with this file is the evidence. A number's text is
kept as it was written, so 1, 1.0 and 1e0 are three different things.
"""
import hashlib
import json


class Number(str):
    """A number by its literal."""


def parse(text):
    return json.loads(text, parse_int=Number, parse_float=Number)


_SHORT = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_HTML = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


def _string(s):
    out = []
    for c in s:
        if c in _SHORT:
            out.append(_SHORT[c])
        elif c in _HTML:
            out.append(_HTML[c])
        elif c < " ":
            out.append("\\u%04x" % ord(c))
        else:
            out.append(c)
    return '"%s"' % "".join(out)


def canonical(value):
    """Keys by their UTF-8 bytes, no white space, strings escaped as the specification's section 4.2 lists."""
    if isinstance(value, Number):
        return str(value)
    if value is None:
        return "null"
    if value is True:
        return "true"
    if value is False:
        return "false"
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, list):
        return "[%s]" % ",".join(canonical(v) for v in value)
    if isinstance(value, dict):
        keys = sorted(value, key=lambda k: k.encode("utf-8"))
        return "{%s}" % ",".join("%s:%s" % (_string(k), canonical(value[k])) for k in keys)
    raise TypeError("not JSON: %r" % (value,))


def sha256(text):
    data = text if isinstance(text, bytes) else text.encode("utf-8")
    return hashlib.sha256(data).hexdigest()


def content_hash(text):
    return sha256(canonical(parse(text)) if text.strip() else "null")


def approval_hash(kind, capability, presentation, request):
    """`request` is the stored JSON; absent capability and presentation count as empty objects."""
    return sha256(canonical({
        "kind": kind,
        "capability": parse(capability) if capability.strip() else {},
        "presentation": parse(presentation) if presentation.strip() else {},
        "request": parse(request),
    }))


def link(previous, seq, run_id, step_id, at, kind, payload):
    """One event's hash: seven netstrings, the previous hash first."""
    joined = b""
    for field in (previous, str(seq), run_id, step_id, at, kind, payload):
        raw = field if isinstance(field, bytes) else field.encode("utf-8")
        joined += b"%d:%s," % (len(raw), raw)
    return sha256(joined)


def chain_breaks(events):
    """What is wrong with a chain, as sentences. `events` are stored rows with the hash last, in order."""
    previous, expected_seq, broken = "", 1, []
    for seq, run_id, step_id, at, kind, payload, stored in events:
        if seq != expected_seq:
            broken.append("event %d stands where %d should" % (seq, expected_seq))
        computed = link(previous, seq, run_id, step_id, at, kind, payload)
        if computed != stored:
            broken.append("event %d is stored with hash %s, its content gives %s" % (seq, stored[:16], computed[:16]))
        previous, expected_seq = stored, seq + 1
    return broken
