"""What the page does: it draws the figures, and draws them anew where light and dark change."""

SCRIPT = """
"use strict";
const report = JSON.parse(document.getElementById("report").textContent);
const dark = window.matchMedia("(prefers-color-scheme: dark)");
const drawn = new Map();

function prepared(name) {
  const spec = structuredClone(report.figures[name].spec);
  spec.datasets = Object.fromEntries(spec.datasets.map((key) => [key, report.datasets[key]]));
  spec.width = "container";
  spec.padding = { left: 4, top: 4, right: 24, bottom: 4 };  // half of the last label is beyond the axis
  spec.autosize = { type: "fit-x", contains: "padding" };
  return spec;
}

// As many columns of a legend as there is room for, each as wide as its longest name.
function columns(names, room) {
  for (let count = 4; count > 1; count -= 1) {
    const widths = Array(count).fill(0);
    names.forEach((name, n) => { widths[n % count] = Math.max(widths[n % count], 45 + 7 * name.length); });
    if (widths.reduce((sum, width) => sum + width) <= room) return count;
  }
  return 1;
}

async function draw(place) {
  const name = place.dataset.figure;
  const { captions } = report.figures[name];
  const before = drawn.get(name);
  const spec = prepared(name);
  const select = spec.params?.find((item) => item.name === "chosen");
  if (before && select) select.value = before.view.signal("chosen");
  before?.finalize();
  const config = structuredClone(report.themes[dark.matches ? "dark" : "light"]);
  config.legend.columns = columns(report.figures[name].names, place.clientWidth - 130);
  const result = await vegaEmbed(place, spec, {
    config,
    renderer: "svg",
    logLevel: 1,  // errors: Vega warns of layers without points, as where nothing was measured
    actions: { export: true, source: false, compiled: false, editor: false },
    tooltip: { theme: dark.matches ? "dark" : "light" },
    downloadFileName: name,
  });
  drawn.set(name, result);
  if (select) {
    const caption = place.parentElement.querySelector("figcaption");
    const say = (_, value) => { caption.textContent = captions[value]; };
    result.view.addSignalListener("chosen", say);
  }
}

async function drawAll() {
  for (const place of document.querySelectorAll(".chart")) await draw(place);
  document.documentElement.dataset.drawn = dark.matches ? "dark" : "light";
}

let turn = drawAll();
const again = () => { turn = turn.then(drawAll); };
dark.addEventListener("change", again);
let width = window.innerWidth;
window.addEventListener("resize", () => {
  if (window.innerWidth === width) return;
  width = window.innerWidth;
  again();
});
"""
