//! `memtrace top`: a live table of findings and sites, and the stack of the selected one.
//!
//! It reads the daemon's dump from its socket and nothing else, so it needs no more than access
//! to that. `wire` reads, `rows` and `model` decide, `view` draws, `events` is the loop. It must
//! never leave the terminal other than it found it, nor show a name of somebody's program raw.

mod details;
mod events;
mod model;
mod rows;
mod terminal;
mod view;
mod wire;

use super::args::SocketArgs;

/// Runs until `q`, Ctrl-C or a signal.
///
/// # Errors
///
/// One line: there is no terminal, or no daemon answers.
pub async fn top(arguments: SocketArgs) -> anyhow::Result<()> {
    let SocketArgs { socket } = arguments;
    terminal::needed()?;
    // Asked before the screen is taken: whoever reads the reason has an ordinary terminal.
    // How long it took says little: the first dump has its stacks named for it.
    let (dump, _) = events::ask(socket.clone()).await;
    let mut model = model::Model::new(dump?, events::EVERY);
    let mut terminal = terminal::Terminal::take()?;
    let look = view::Look { colour: colour(|name| std::env::var(name).ok()) };
    events::run(&mut terminal, &mut model, look, socket).await
}

/// Whether colours are wanted: <https://no-color.org>, and not on a terminal that has none.
fn colour(variable: impl Fn(&str) -> Option<String>) -> bool {
    let refused = variable("NO_COLOR").is_some_and(|value| !value.is_empty());
    !refused && variable("TERM").is_none_or(|terminal| terminal != "dumb")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colour_where_it_is_wanted() {
        for (no_color, term, expected) in [
            (None, Some("xterm"), true),
            (None, None, true),
            (Some(""), Some("xterm"), true),
            (Some("1"), Some("xterm"), false),
            (None, Some("dumb"), false),
        ] {
            let variable = |name: &str| {
                let value = if name == "TERM" { term } else { no_color };
                value.map(str::to_owned)
            };
            assert_eq!(colour(variable), expected, "{no_color:?} {term:?}");
        }
    }
}
