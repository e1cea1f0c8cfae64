//! Trace contexts in the environment of a process, in the form of the W3C: `TRACEPARENT` and `TRACESTATE`.

use opentelemetry::Context;
use opentelemetry::trace::{SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId, TraceState};

/// The variable that names the trace and the span.
pub const TRACEPARENT: &str = "TRACEPARENT";

/// The variable that carries what tracing systems add.
pub const TRACESTATE: &str = "TRACESTATE";

/// The context that `variable` looks up; `None` if there is none, or a malformed one.
///
/// ```
/// # use leasehold::observe::otel::from_environment;
/// let context = from_environment(|name| std::env::var(name).ok());
/// # assert!(context.is_none());
/// ```
pub fn from_environment(variable: impl Fn(&str) -> Option<String>) -> Option<Context> {
    let parent = variable(TRACEPARENT)?;
    let (trace, span, flags) = parse(&parent)?;
    let state = variable(TRACESTATE).and_then(|state| state.parse::<TraceState>().ok()).unwrap_or_default();
    let span = SpanContext::new(trace, span, flags, true, state);
    span.is_valid().then(|| Context::new().with_remote_span_context(span))
}

/// What a child needs in its environment to belong to the trace of `context`: `None` = not to be set.
pub fn into_environment(context: &Context) -> [(&'static str, Option<String>); 2] {
    let span = context.span();
    let span = span.span_context();
    if !span.is_valid() {
        return [(TRACEPARENT, None), (TRACESTATE, None)];
    }
    let parent = format!("00-{}-{}-{:02x}", span.trace_id(), span.span_id(), span.trace_flags().to_u8() & 1);
    let state = Some(span.trace_state().header()).filter(|state| !state.is_empty());
    [(TRACEPARENT, Some(parent)), (TRACESTATE, state)]
}

/// `version-trace-span-flags` in lower-case hexadecimal digits; later versions may add fields.
fn parse(parent: &str) -> Option<(TraceId, SpanId, TraceFlags)> {
    let mut fields = parent.trim().split('-');
    let mut field = |digits| {
        let field = fields.next()?;
        let is_hex = field.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        (field.len() == digits && is_hex).then_some(field)
    };
    let (version, trace, span, flags) = (field(2)?, field(32)?, field(16)?, field(2)?);
    if version == "ff" || (version == "00" && fields.next().is_some()) {
        return None;
    }
    let flags = u8::from_str_radix(flags, 16).ok()?;
    Some((TraceId::from_hex(trace).ok()?, SpanId::from_hex(span).ok()?, TraceFlags::new(flags & 1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn through(parent: &str, state: Option<&str>) -> Option<[(&'static str, Option<String>); 2]> {
        let look_up = |name: &str| match name {
            TRACEPARENT => Some(parent.to_owned()),
            TRACESTATE => state.map(str::to_owned),
            _ => None,
        };
        from_environment(look_up).as_ref().map(into_environment)
    }

    #[test]
    fn a_context_passes_through() {
        let [parent, state] = through(PARENT, Some("a=1,b=2")).unwrap();
        assert_eq!((parent.1.as_deref(), state.1.as_deref()), (Some(PARENT), Some("a=1,b=2")));
        assert_eq!(through(PARENT, None).unwrap()[1].1, None);
        assert_eq!(through(PARENT, Some("not a state")).unwrap()[1].1, None);
        // A later version may say more; what goes on is what this one knows.
        let later = PARENT.replace("00-0af", "01-0af") + "-more";
        assert_eq!(through(&later, None).unwrap()[0].1.as_deref(), Some(PARENT));
    }

    #[test]
    fn a_malformed_context_is_none() {
        for parent in [
            "",
            "00",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
            "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        ] {
            assert!(through(parent, None).is_none(), "{parent}");
        }
        assert_eq!(into_environment(&Context::new()), [(TRACEPARENT, None), (TRACESTATE, None)]);
    }
}
