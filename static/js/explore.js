// Draws the figure of Explore in the page's colours; the address follows zoom and legend, the y axes the zoom.
"use strict";
(() => {
  const box = document.getElementById("explore-chart");
  const figure = JSON.parse(document.getElementById("explore-figure").textContent);
  const colour = (name) => {
    box.style.color = `var(${name})`; // computed, so that light-dark() is one colour
    const computed = getComputedStyle(box).color;
    box.style.color = "";
    return computed;
  };
  const axes = Object.keys(figure.layout).filter((name) => name.startsWith("yaxis"));
  const isNarrow = () => box.clientWidth < 700;
  const ticks = figure.layout.xaxis.nticks || 0;
  const hours = { dtickrange: [null, 24 * 3600 * 1000 - 1], value: "%H:%M\n%b %-d" }; // with the year they would overlap

  const draw = () => {
    const quiet = { gridcolor: colour("--line"), zerolinecolor: colour("--axis"), linecolor: colour("--line") };
    const font = { color: colour("--dim"), family: getComputedStyle(box).fontFamily, size: 12 };
    const { layout } = figure;
    for (const name of axes) Object.assign(layout[name], quiet, { fixedrange: true });
    Object.assign(layout.xaxis, quiet, { automargin: true, nticks: isNarrow() ? 4 : ticks, tickformatstops: isNarrow() ? [hours] : [], showspikes: true, spikemode: "across", spikethickness: 1, spikedash: "solid", spikecolor: colour("--axis"), anchor: `y${axes.length > 1 ? axes.length : ""}` });
    Object.assign(layout.legend, isNarrow() ? { orientation: "h", yref: "container", yanchor: "bottom", y: 0, maxheight: 120 } : { orientation: "v" });
    Object.assign(layout, {
      font,
      height: (isNarrow() ? 460 : 520) + 200 * (axes.length - 1),
      margin: { l: isNarrow() ? 48 : 64, r: 12, t: 30, b: 44 },
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      hoverlabel: { bgcolor: colour("--card"), bordercolor: colour("--line-2"), font: { ...font, color: colour("--text") } },
      modebar: { color: colour("--dim"), activecolor: colour("--text"), bgcolor: "rgba(0,0,0,0)" },
    });
    for (const trace of figure.data) trace.line.color = colour(trace.meta ? `--s${trace.meta}` : "--spark");
    const image = { format: "png", filename: "explore", scale: 2 };
    Plotly.react(box, figure.data, layout, { responsive: true, displaylogo: false, showTips: false, displayModeBar: true, modeBarButtons: [["toImage", "resetScale2d"]], toImageButtonOptions: image });
  };

  const remember = (values) => {
    const query = new URLSearchParams(location.search);
    for (const [name, value] of Object.entries(values)) {
      query.delete(name);
      for (const each of [value].flat()) if (each) query.append(name, each);
    }
    history.replaceState(null, "", `?${query}`);
  };

  // plotly leaves the y axes as they are when x is zoomed
  const fit = () => {
    const { xaxis } = box._fullLayout;
    const [left, right] = xaxis.range.map((end) => xaxis.r2l(end));
    const ranges = {};
    for (const name of axes) {
      const id = name.replace("axis", "");
      const values = box.calcdata
        .filter((points) => points[0].trace.yaxis === id && points[0].trace.visible === true)
        .flatMap((points) => points.filter((point) => point.x >= left && point.x <= right && Number.isFinite(point.y)).map((point) => point.y));
      if (!values.length) continue;
      const low = values.reduce((a, b) => Math.min(a, b));
      const high = values.reduce((a, b) => Math.max(a, b));
      const spare = (high - low) * 0.06 || Math.abs(high) * 0.05 || 1;
      ranges[`${name}.range`] = [low - spare, high + spare];
    }
    if (Object.keys(ranges).length) Plotly.relayout(box, ranges);
  };
  const day = (end) => {
    if (figure.layout.xaxis.type === "date") return String(end).slice(0, 10);
    const days = figure.layout.meta;
    return days[Math.min(Math.max(Math.round(end), 0), days.length - 1)];
  };

  draw();
  if (figure.layout.xaxis.range) fit();
  box.on("plotly_relayout", (change) => {
    if (!Object.keys(change).some((name) => name.startsWith("xaxis"))) return;
    const { range, autorange } = box.layout.xaxis;
    remember(autorange ? { from: "", to: "" } : { from: day(range[0]), to: day(range[1]) });
    fit();
  });
  box.on("plotly_restyle", () => {
    remember({ hidden: box.data.filter((trace) => trace.visible === "legendonly").map((trace) => trace.uid) });
    fit();
  });
  document.addEventListener("hud:theme", draw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
})();
