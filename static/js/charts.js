// Draws every div[data-figure] from the data block of that id. Colours of text and grid are the page's own.
"use strict";
(() => {
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  const themed = () => {
    const axis = { gridcolor: colour("--line"), zerolinecolor: colour("--line"), linecolor: colour("--line") };
    return {
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { color: colour("--text"), family: "system-ui, sans-serif", size: 12 },
      hoverlabel: { bgcolor: colour("--card"), bordercolor: colour("--line"), font: { color: colour("--text"), family: "system-ui, sans-serif", size: 12 }, align: "left" },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: colour("--dim"), activecolor: colour("--text") },
      xaxis: axis,
      yaxis: axis,
    };
  };

  const merged = (base, extra) => {
    const all = { ...base };
    for (const [key, value] of Object.entries(extra)) {
      const both = value && typeof value === "object" && !Array.isArray(value) && base[key];
      all[key] = both ? merged(base[key], value) : value;
    }
    return all;
  };

  // by name, so that a newer plotly brings no button that sends data somewhere
  const buttons = [["zoom2d", "pan2d", "zoomIn2d", "zoomOut2d", "resetScale2d", "toImage"]];

  const draw = async (box) => {
    const figure = JSON.parse(document.getElementById(box.dataset.figure).textContent);
    const axes = Object.keys(figure.layout).filter((name) => /^[xy]axis\d/.test(name));
    const theme = themed();
    for (const name of axes) theme[name] = theme.xaxis;
    const layout = merged(theme, figure.layout);
    const options = { responsive: true, displaylogo: false, showTips: false, modeBarButtons: buttons };
    await Plotly.newPlot(box, figure.data, layout, options);
    box.on("plotly_click", (event) => {
      const place = event.points[0].customdata;
      if (typeof place !== "string" || !place.startsWith("#run-")) return;
      if (document.querySelector(place)) location.hash = place;
      else location.assign(`/runs/${place.slice("#run-".length)}/`); // the table holds the newest only
    });
  };

  const boxes = [...document.querySelectorAll("div[data-figure]")];
  for (const box of boxes) draw(box);

  const recolour = () => {
    const { xaxis, yaxis, ...rest } = themed();
    for (const box of boxes) {
      const change = { ...rest };
      for (const name of Object.keys(box.layout || {}).filter((name) => /^[xy]axis/.test(name)))
        for (const [key, value] of Object.entries(name[0] === "x" ? xaxis : yaxis)) change[`${name}.${key}`] = value;
      Plotly.relayout(box, change);
    }
  };
  document.addEventListener("hud:theme", recolour);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", recolour);
})();
