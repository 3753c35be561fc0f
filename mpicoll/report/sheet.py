"""The page's style sheet."""

SHEET = """
:root { --back: #ffffff; --text: #1b1b1b; --quiet: #595959; --rule: #dddddd; --link: #005a9c; }
@media (prefers-color-scheme: dark) {
  :root { --back: #16181c; --text: #e8e8e8; --quiet: #a8acb3; --rule: #3a3d42; --link: #7cb7ff; }
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; max-width: 1480px; padding: 1rem clamp(0.75rem, 3vw, 2.5rem) 3rem;
  background: var(--back); color: var(--text);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", "Helvetica Neue", Arial, sans-serif;
}
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0.5rem 0; overflow-wrap: anywhere; }
h2 { font-size: 1.3rem; margin: 2rem 0 0.5rem; border-top: 2px solid var(--rule); padding-top: 1rem; }
h3 { font-size: 1.05rem; margin: 0 0 0.4rem; }
p { max-width: 75ch; margin: 0.4rem 0; }
a { color: var(--link); }
.note, footer { color: var(--quiet); }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 560px), 1fr)); gap: 2rem; }
figure { margin: 1rem 0 0; min-width: 0; }
figcaption { max-width: 75ch; margin-top: 0.4rem; }
.chart { width: 100%; position: relative; }
.chart.vega-embed .chart-wrapper { width: 100%; display: flex; flex-direction: column; }
.chart.vega-embed .vega-bindings { order: -1; margin: 0 0 0.4rem; }
.chart.vega-embed .vega-bind-name { margin-right: 0.4rem; }
.chart.vega-embed select { font: inherit; color: inherit; background: var(--back); padding: 0.15rem 0.3rem; }
.chart.vega-embed details { opacity: 0.5; }
.chart.vega-embed details summary { background: var(--back); color: var(--text); }
section > details { margin-top: 1.5rem; }
section > details > summary { cursor: pointer; }
section > details > summary h3 { display: inline; }
.scroll { overflow-x: auto; max-height: 32rem; overflow-y: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 0.9rem; }
th, td { padding: 0.25rem 0.9rem 0.25rem 0; text-align: left; vertical-align: top; }
th, td { border-bottom: 1px solid var(--rule); }
thead th { border-bottom: 2px solid var(--quiet); position: sticky; top: 0; background: var(--back); }
@media print { .chart .vega-bindings, .chart details { display: none; } }
"""
