// Draws the trend charts of the overview once they come into view; the chart library is loaded then.
"use strict";
(() => {
  const library = document.currentScript.dataset.plotly;
  const block = document.getElementById("trend-data");
  const boxes = [...document.querySelectorAll("[data-trend]")];
  if (!block || !boxes.length) return;
  const data = JSON.parse(block.textContent);
  const colour = (name) => {
    boxes[0].style.color = `var(${name})`; // computed, so that light-dark() is one colour
    const found = getComputedStyle(boxes[0]).color;
    boxes[0].style.color = "";
    return found;
  };
  const dashes = { 4: "dot", 5: "longdash" };

  const draw = (box) => {
    const chart = data.charts[Number(box.dataset.trend)];
    const places = data.x.map((_title, place) => place);
    const lines = chart.lines.map((line) => ({
      x: places,
      y: line.y,
      name: line.name,
      mode: line.y.filter((value) => value !== null).length < 2 ? "markers" : "lines",
      connectgaps: false,
      line: { color: colour(line.colour ? `--s${line.colour}` : "--spark"), width: 1.6, dash: dashes[line.colour] || "solid" },
      text: data.x.map((title, place) => `${title} ${data.commits[place]}`),
      hovertemplate: `%{text}<br>${line.name}: %{y${chart.unit ? ":+.1f" : ""}}${chart.unit ? " %" : ""}<extra></extra>`,
    }));
    const step = Math.max(1, Math.ceil(places.length / 4));
    const ticks = places.filter((place) => (places.length - 1 - place) % step === 0);
    const font = { color: colour("--faint"), family: "inherit", size: 11 };
    const quiet = { gridcolor: colour("--line"), zerolinecolor: colour("--line"), linecolor: colour("--line"), fixedrange: true };
    const values = chart.lines.flatMap((line) => line.y).filter((value) => value !== null);
    const least = chart.unit ? 2 : 1; // so that noise looks like noise
    const [low, high] = [Math.min(...values), Math.max(...values)];
    const spare = Math.max((high - low) * 0.08, (2 * least - (high - low)) / 2, 0.1);
    const layout = {
      margin: { l: 38, r: 10, t: 4, b: 22 },
      height: 170,
      showlegend: false,
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font,
      hoverlabel: { bgcolor: colour("--card"), bordercolor: colour("--line"), font: { ...font, color: colour("--text") }, align: "left" },
      xaxis: { ...quiet, showgrid: false, tickvals: ticks, ticktext: ticks.map((place) => data.x[place]), range: [-0.5, places.length - 0.5] },
      yaxis: { ...quiet, range: [low - spare, high + spare], nticks: 5, ...(chart.unit || high - low > 6 ? {} : { dtick: 1 }), tickformat: chart.unit ? "+~g" : "~g" },
      shapes: [{ type: "line", x0: data.base, x1: data.base, y0: 0, y1: 1, yref: "paper", line: { color: colour("--axis"), width: 1, dash: "dot" } }],
    };
    Plotly.react(box, lines, layout, { responsive: true, displayModeBar: false });
  };

  const drawAll = () => boxes.forEach(draw);
  const load = () => {
    const script = document.createElement("script");
    script.src = library;
    script.addEventListener("load", drawAll);
    document.head.append(script);
  };
  const seen = new IntersectionObserver((entries) => {
    if (!entries.some((entry) => entry.isIntersecting)) return;
    seen.disconnect();
    load();
  });
  boxes.forEach((box) => seen.observe(box));
  const recolour = () => window.Plotly && drawAll();
  document.addEventListener("hud:theme", recolour);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", recolour);
})();
