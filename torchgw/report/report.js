"use strict";
// Draws what is in the element "data", and links the two clouds. All text goes through textContent.
(() => {
  const page = JSON.parse(document.getElementById("data").textContent);
  const element = (id) => document.getElementById(id);

  // Colours: viridis for values, Okabe and Ito's for labels; both can be told apart by colour-blind readers.
  const VIRIDIS = ["#440154", "#482878", "#3e4989", "#31688e", "#26828e", "#1f9e89", "#35b779", "#6ece58", "#b5de2b", "#fde725"];
  const OKABE_ITO = ["#0072b2", "#d55e00", "#009e73", "#e69f00", "#cc79a7", "#56b4e9", "#000000", "#f0e442"];
  const SYMBOLS = ["circle", "square", "diamond", "cross", "x"];
  const UNKNOWN = "#c4c9cf";
  const FONT = { family: "system-ui, -apple-system, 'Segoe UI', sans-serif", size: 12, color: "#1b1f24" };

  const bytes = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0)).buffer;
  const floats = (text) => new Float32Array(bytes(text));
  const doubles = (text) => new Float64Array(bytes(text));
  const integers = (text) => new Int32Array(bytes(text));

  const hasWebGL = (() => {
    const context = document.createElement("canvas").getContext("webgl");
    context?.getExtension("WEBGL_lose_context")?.loseContext();
    return context !== null;
  })();

  const sides = page.sides.map((side) => {
    const index = integers(side.index);
    const coordinates = floats(side.coordinates);
    const axis = (at) => Array.from(index, (_, i) => coordinates[i * side.dimension + at]);
    return {
      ...side,
      index,
      axes: [0, 1, 2].slice(0, side.dimension).map(axis),
      edges: integers(side.edges),
      mass: floats(side.mass),
      matches: integers(side.matches),
      shares: floats(side.shares),
      position: new Map(Array.from(index, (i, at) => [i, at])),
      flat: side.dimension === 2 || !hasWebGL,
    };
  });

  const others = page.others.map((other) => ({ ...other, matches: integers(other.matches), shifts: floats(other.shifts) }));
  const nameOf = (at, position) => (sides[at].names ? sides[at].names[position] : String(sides[at].index[position]));

  // ---- text and tables

  function add(parent, tag, text = "", className = "") {
    const made = document.createElement(tag);
    made.textContent = text;
    if (className) made.className = className;
    parent.append(made);
    return made;
  }

  // The element, which is about to get content. A panel in which nothing got any is left out, with its heading.
  function filled(id) {
    element(id).dataset.filled = "";
    return element(id);
  }

  function leaveOutEmptyPanels() {
    document.querySelectorAll("[data-panel]").forEach((panel) => { panel.hidden = !panel.querySelector("[data-filled]"); });
  }

  function list(id, texts) {
    texts.forEach((text) => add(filled(id), "li", text));
  }

  function table(id, { head, rows, marked }) {
    if (rows.length === 0) return;
    const made = add(filled(id), "table");
    if (head.some((text) => text)) {
      const top = add(add(made, "thead"), "tr");
      head.forEach((text) => { add(top, "th", text).scope = "col"; });
    }
    const body = add(made, "tbody");
    rows.forEach((row, at) => {
      const line = add(body, "tr", "", marked.includes(at) ? "marked" : "");
      row.forEach((text) => add(line, "td", text));
    });
  }

  function texts() {
    element("verdict").textContent = page.verdict.text;
    element("verdict").className = page.verdict.level;
    element("summary").textContent = page.summary.join(" ");
    list("warnings", page.warnings);
    list("certain", page.certain);
    list("uncertain", page.uncertain);
    table("matchings", page.matchings);
    table("resolutions", page.resolutions);
    table("problem", page.problem);
    table("options", page.options);
    table("origin", page.origin);
    const changed = page.options.rows.filter((_, at) => page.options.marked.includes(at));
    element("changed-text").textContent = changed.length ? "Options that differ from their defaults:" : "All options have their default values.";
    table("changed", { head: page.options.head, rows: changed, marked: [] });
    sides.forEach((side, at) => {
      const caption = element(`caption-${at}`);
      add(caption, "strong", side.name);
      caption.append(`: ${side.size.toLocaleString("en")} points, ${side.caption}`);
      if (side.dimension === 3 && side.flat) caption.append("; the first two of three, for lack of WebGL");
    });
    const partial = sides.filter((side) => side.drawn < side.size).map(
      (side) => `${side.drawn.toLocaleString("en")} of the ${side.size.toLocaleString("en")} ${side.name} points are drawn, a random subset`);
    if (partial.length) element("subset").textContent = `${partial.join("; ")}. A match that is not drawn appears when it is highlighted.`;
  }

  // ---- colours

  function mixed(share) {
    const place = Math.min(Math.max(share, 0), 1) * (VIRIDIS.length - 1);
    const low = Math.min(Math.floor(place), VIRIDIS.length - 2);
    const channel = (hex, at) => parseInt(hex.slice(1 + 2 * at, 3 + 2 * at), 16);
    const parts = [0, 1, 2].map((at) => Math.round(
      channel(VIRIDIS[low], at) * (1 - place + low) + channel(VIRIDIS[low + 1], at) * (place - low)));
    return `rgb(${parts.join(",")})`;
  }

  // Positions in the list of names, or values; null for a cloud that stays grey.
  const colourings = page.colourings.map((colouring) => ({
    ...colouring,
    sides: colouring.sides.map((text) => text && (colouring.names ? integers(text) : doubles(text))),
  }));
  let colouring = colourings[0];

  // A place on a square: blue to orange from left to right, dark to light from bottom to top.
  const ACROSS = [[58, 111, 224], [176, 68, 176], [232, 116, 30]];
  const [DARK, LIGHT] = [0.5, 0.5];  // of black at the bottom, of white at the top

  function onSquare(x, y) {
    if (!Number.isFinite(x) || !Number.isFinite(y)) return UNKNOWN;
    const low = x < 0.5 ? 0 : 1;
    const veil = y < 0.5 ? DARK * (1 - 2 * y) : LIGHT * (2 * y - 1);
    const parts = ACROSS[low].map((left, at) => {
      const plain = left + (2 * x - low) * (ACROSS[low + 1][at] - left);
      return Math.round((1 - veil) * plain + veil * (y < 0.5 ? 0 : 255));
    });
    return `rgb(${parts.join(",")})`;
  }

  function colourOf(value) {
    if (colouring.names) return value < 0 ? UNKNOWN : OKABE_ITO[value % OKABE_ITO.length];
    const [low, high] = colouring.range;
    return Number.isFinite(value) ? mixed(high > low ? (value - low) / (high - low) : 0.5) : UNKNOWN;
  }

  // Labels beyond the eight colours come round again with another symbol.
  const symbolOf = (code) => SYMBOLS[Math.floor(Math.max(code, 0) / OKABE_ITO.length) % SYMBOLS.length];

  function colours(at) {
    const values = colouring.sides[at];
    if (colouring.plane) return Array.from({ length: sides[at].drawn }, (_, i) => onSquare(values[2 * i], values[2 * i + 1]));
    return Array.from({ length: sides[at].drawn }, (_, i) => (values ? colourOf(values[i]) : UNKNOWN));
  }

  function symbols(at) {
    if (!colouring.names || colouring.names.length <= OKABE_ITO.length) return "circle";
    return Array.from({ length: sides[at].drawn }, (_, i) => symbolOf(colouring.sides[at][i]));
  }

  function described(at, position) {
    if (colouring.plane) return "";
    const value = colouring.sides[at]?.[position];
    if (value === undefined) return "";
    if (colouring.names) return value < 0 ? "" : colouring.names[value];
    return Number.isFinite(value) ? String(Number(value.toPrecision(3))) : "";
  }

  function swatch(parent, code) {
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    const shape = document.createElementNS("http://www.w3.org/2000/svg", "path");
    const shapes = {
      circle: "M6 1a5 5 0 1 0 .01 0z", square: "M1 1h10v10H1z", diamond: "M6 0l6 6-6 6-6-6z",
      cross: "M4 0h4v4h4v4H8v4H4V8H0V4h4z", x: "M2 0l4 4 4-4 2 2-4 4 4 4-2 2-4-4-4 4-2-2 4-4-4-4z",
    };
    svg.setAttribute("viewBox", "0 0 12 12");
    svg.setAttribute("aria-hidden", "true");
    shape.setAttribute("d", shapes[symbolOf(code)]);
    shape.setAttribute("fill", colourOf(code));
    svg.append(shape);
    parent.append(svg);
  }

  function legend() {
    const place = element("legend");
    place.replaceChildren();
    element("explanation").textContent = colouring.explanation;
    if (colouring.names) {
      colouring.names.forEach((name, code) => {
        const entry = add(place, "span");
        swatch(entry, code);
        entry.append(name);
      });
      return;
    }
    if (colouring.plane) {
      const across = ACROSS.map((parts) => `rgb(${parts.join(",")})`).join(",");
      const veil = `rgba(0,0,0,${DARK}), rgba(0,0,0,0) 50%, rgba(255,255,255,0) 50%, rgba(255,255,255,${LIGHT})`;
      add(place, "span", "", "square").style.background = `linear-gradient(to top, ${veil}), linear-gradient(to right, ${across})`;
      add(place, "span", "place in the source");
      return;
    }
    const number = (value) => String(Number(value.toPrecision(3)));
    add(place, "span", number(colouring.range[0]));
    add(place, "span", "", "ramp").style.background = `linear-gradient(to right, ${VIRIDIS.join(",")})`;
    add(place, "span", number(colouring.range[1]));
  }

  // ---- the clouds

  const size = (side) => Math.min(Math.max(9.5 - 1.3 * Math.log(side.drawn / 100), 3.5), 10) * (side.flat ? 1 : 0.6);

  function draw(at) {
    const side = sides[at];
    const [x, y, z] = side.axes.map((axis) => axis.slice(0, side.drawn));
    const trace = {
      type: side.flat ? (hasWebGL ? "scattergl" : "scatter") : "scatter3d",
      mode: "markers", ...(side.flat ? { x, y } : { x, y, z }), hoverinfo: "skip",
      marker: { size: size(side), color: colours(at), symbol: symbols(at), opacity: side.flat ? 0.9 : 1, line: { width: 0 } },
    };
    const ends = (axis) => Array.from({ length: 1.5 * side.edges.length }, (_, i) =>
      (i % 3 === 2 ? null : axis[side.edges[2 * Math.floor(i / 3) + (i % 3)]]));
    const [left, right, deep] = side.axes.map(ends);
    const edges = {
      type: trace.type, mode: "lines", ...(side.flat ? { x: left, y: right } : { x: left, y: right, z: deep }),
      hoverinfo: "skip", line: { color: "#9aa4ae", width: 1 },
    };
    const traces = side.edges.length ? [edges, trace] : [trace];
    const axis = { zeroline: false, gridcolor: "#e3e8ed", tickfont: { size: 10, color: "#57606a" }, title: { text: "" } };
    const layout = {
      font: FONT, showlegend: false, hovermode: false, dragmode: side.flat ? "pan" : "orbit",
      margin: side.flat ? { l: 38, r: 8, t: 8, b: 26 } : { l: 0, r: 0, t: 0, b: 0 }, paper_bgcolor: "#fff", plot_bgcolor: "#fff",
    };
    if (side.flat) {
      Object.assign(layout, { xaxis: axis, yaxis: { ...axis, scaleanchor: "x", scaleratio: 1 } });
    } else {
      const walls = { ...axis, backgroundcolor: "#fff", showspikes: false };
      const spans = [x, y, z].map((axis) => axis.reduce(([low, high], value) => [Math.min(low, value), Math.max(high, value)], [Infinity, -Infinity]));
      const [a, b, c] = spans.map(([low, high]) => (high - low) / (Math.max(...spans.map(([least, most]) => most - least)) || 1) || 0.05);
      const away = 0.8 * Math.hypot(a, b, c) / Math.hypot(1, 1, 1);  // as far as the box is large
      layout.scene = {
        aspectmode: "manual", aspectratio: { x: a, y: b, z: c }, xaxis: walls, yaxis: walls, zaxis: walls, hovermode: false,
        camera: { projection: { type: "orthographic" }, eye: { x: 1.35 * away, y: 1.35 * away, z: 0.85 * away } },
      };
    }
    const unwanted = ["select2d", "lasso2d", "toImage", "hoverClosest3d"];
    const config = { responsive: true, displaylogo: false, scrollZoom: true, modeBarButtonsToRemove: unwanted };
    return Plotly.newPlot(element(`cloud-${at}`), traces, layout, config);
  }

  function recolour() {
    legend();
    sides.forEach((_, at) => Plotly.restyle(`cloud-${at}`, { "marker.color": [colours(at)], "marker.symbol": [symbols(at)] }, [sides[at].edges.length ? 1 : 0]));
    if (state.highlighted) tell(...now);
  }

  // Points are found and lit up outside of the drawing library, which would draw the whole cloud anew for each of them.
  // A view says where a point is in pixels of the plot, how far behind others, and whether the view has changed.

  function view(at) {
    const { axes, flat } = sides[at];
    const plot = element(`cloud-${at}`);
    const full = plot._fullLayout;
    if (flat) {
      const { xaxis, yaxis } = full;
      return {
        key: [xaxis._offset, xaxis._length, yaxis._offset, yaxis._length, ...xaxis.range, ...yaxis.range].join(),
        frame: [xaxis._offset, yaxis._offset, xaxis._length, yaxis._length],
        place: (i) => [xaxis._offset + xaxis.l2p(axes[0][i]), yaxis._offset + yaxis.l2p(axes[1][i]), 0],
      };
    }
    const scene = full.scene._scene;
    const { projection, view: camera, model } = scene.glplot.cameraParams;
    const [matrix, scale] = [product(projection, product(camera, model)), scene.dataScale];
    const [inner, outer] = [scene.container.getBoundingClientRect(), plot.getBoundingClientRect()];
    const [left, top] = [inner.left - outer.left, inner.top - outer.top];
    return {
      key: [...matrix, left, top, inner.width, inner.height].join(),
      frame: [left, top, inner.width, inner.height],
      place: (i) => {
        const [x, y, z, w] = [0, 1, 2, 3].map((row) => matrix[row + 12] +
          axes.reduce((sum, axis, column) => sum + matrix[row + 4 * column] * scale[column] * axis[i], 0));
        return [left + 0.5 * (1 + x / w) * inner.width, top + 0.5 * (1 - y / w) * inner.height, z / w];
      },
    };
  }

  // Of 4 x 4 matrices, column after column.
  const product = (A, B) => Array.from({ length: 16 }, (_, at) =>
    [0, 1, 2, 3].reduce((sum, i) => sum + A[(at % 4) + 4 * i] * B[4 * Math.floor(at / 4) + i], 0));

  // The nearest point within reach of the pointer; in three dimensions, the foremost of those right under it.
  function pointed(at, x, y) {
    const { place } = view(at);
    const reach = { under: 5, near: 14 };
    let [best, found] = [Infinity, -1];
    for (let i = 0; i < sides[at].drawn; i++) {
      const [left, top, depth] = place(i);
      const distance = Math.hypot(left - x, top - y);
      if (distance > reach.near) continue;
      const rank = !sides[at].flat && distance < reach.under ? depth - 10 : distance;
      if (rank < best) [best, found] = [rank, i];
    }
    return found;
  }

  // ---- what is chosen

  // What the page shows, and where points are in the window, for scripts.
  const state = { ready: false, webgl: hasWebGL, pinned: false, highlighted: null, milliseconds: null };
  window.torchgw = state;
  const lights = [[], []];
  const layers = [0, 1].map(() => document.createElementNS("http://www.w3.org/2000/svg", "svg"));
  let now = null;

  function matchesOf(at, position) {
    const side = sides[at];
    const found = [];
    for (let i = position * side.matches_of_each; i < (position + 1) * side.matches_of_each; i++) {
      if (side.matches[i] >= 0) found.push({ position: side.matches[i], index: sides[1 - at].index[side.matches[i]], share: side.shares[i] });
    }
    return found;
  }

  // Put the lights of a side where its view has them.
  function shine(at) {
    const { key, frame: [left, top, width, height], place } = view(at);
    const layer = layers[at];
    layer.dataset.key = key;
    layer.setAttribute("style", `left:${left}px;top:${top}px;width:${width}px;height:${height}px`);
    layer.replaceChildren();
    for (const { position, radius, text, other } of lights[at]) {
      const [x, y] = place(position);
      const circle = document.createElementNS("http://www.w3.org/2000/svg", "circle");
      if (other) circle.setAttribute("class", "other");
      for (const [name, value] of Object.entries({ cx: x - left, cy: y - top, r: radius })) circle.setAttribute(name, value);
      layer.append(circle);
      if (!text) continue;
      const label = document.createElementNS("http://www.w3.org/2000/svg", "text");
      const end = x - left > 0.7 * width;
      for (const [name, value] of Object.entries({ x: x - left + (end ? -12 : 12), y: y - top - 8, "text-anchor": end ? "end" : "start" })) {
        label.setAttribute(name, value);
      }
      label.textContent = text;
      layer.append(label);
    }
  }

  // Zooming, turning and resizing move the lights.
  function follow() {
    lights.forEach((some, at) => {
      if (some.length && view(at).key !== layers[at].dataset.key) shine(at);
    });
    requestAnimationFrame(follow);
  }

  function choose(at, position, pin) {
    const side = sides[at];
    const found = matchesOf(at, position);
    const most = Math.max(...found.map((match) => match.share));
    now = [at, position, found];
    lights[at] = [{ position, radius: 7, text: `${side.name} ${nameOf(at, position)}` }];
    lights[1 - at] = found.map((match) => ({ position: match.position, radius: 3 + 5 * Math.sqrt(match.share / most) })).reverse();
    const sent = at === 0 && pin && found.length ? others.map((other) => ({ ...other, position: other.matches[position], shift: other.shifts[position] })) : [];
    lights[1 - at].push(...sent.map((other) => ({ position: other.position, radius: 9, other: true })));
    shine(at);
    shine(1 - at);
    state.pinned = pin;
    state.highlighted = { side: side.name, index: side.index[position], matches: found.map(({ index, share }) => ({ index, share })), others: sent.map(({ position: to }) => sides[1].index[to]) };
    element("unpin").hidden = !pin;
    element("matches").setAttribute("aria-live", pin ? "polite" : "off");  // not at every move of the pointer
    element("message").textContent = "";
    tell(at, position, found);
    tellOthers(sent);
  }

  function release() {
    Object.assign(state, { pinned: false, highlighted: null });
    now = null;
    element("unpin").hidden = true;
    element("message").textContent = "";
    [0, 1].forEach((at) => { lights[at] = []; layers[at].replaceChildren(); });
  }

  function listen(at) {
    const plot = element(`cloud-${at}`);
    plot.setAttribute("role", "group");
    plot.setAttribute("aria-label", `the ${sides[at].name} cloud; points can be looked up by their index`);
    plot.append(layers[at]);
    const under = ({ clientX, clientY }) => {
      const { left, top } = plot.getBoundingClientRect();
      return pointed(at, clientX - left, clientY - top);
    };
    // In three dimensions the library would draw the cloud once more for every move, to find the point by itself.
    if (!sides[at].flat) plot.addEventListener("mousemove", (event) => { if (!event.buttons) event.stopPropagation(); }, true);
    plot.addEventListener("pointermove", (event) => {
      if (state.pinned || event.buttons) return;
      const since = performance.now();
      const found = under(event);
      if (found < 0 || (now && now[0] === at && now[1] === found)) return;
      choose(at, found, false);
      state.milliseconds = performance.now() - since;
    });
    plot.addEventListener("pointerdown", (down) => {
      const found = under(down);
      if (down.button !== 0 || found < 0) return;
      // The library lays a cover over the page while a button is held, so the end is listened for everywhere.
      document.addEventListener("pointerup", (up) => {
        if (Math.hypot(up.clientX - down.clientX, up.clientY - down.clientY) < 4) choose(at, found, true);
      }, { once: true });
    }, true);
  }

  const percent = (share) => `${share >= 0.0995 ? (100 * share).toFixed(0) : Number((100 * share).toPrecision(2))} %`;

  function tell(at, position, found) {
    const [side, other] = [sides[at], sides[1 - at]];
    const label = described(at, position);
    element("matches-title").textContent = `${side.name} ${nameOf(at, position)}${label ? `: ${label}` : ""}`;
    const body = element("matches-table").tBodies[0];
    body.replaceChildren();
    element("matches-table").hidden = found.length === 0;
    element("matches-other").textContent = other.name;
    found.forEach((match) => {
      const line = add(body, "tr");
      const first = add(line, "td");
      link(first, 1 - at, match.position);
      const known = described(1 - at, match.position);
      if (known) add(first, "span", known, "known");
      const second = add(line, "td", percent(match.share));
      add(second, "span", "", "bar").style.width = `${Math.round((48 * match.share) / found[0].share)}px`;
    });
    element("matches-text").textContent = found.length
      ? `Mass ${Number(side.mass[position].toPrecision(3))}, ${at === 0 ? "sent to" : "received from"}:`
      : "It has no mass in the plan, so no match.";
    const rest = 1 - found.reduce((sum, match) => sum + match.share, 0);
    element("matches-rest").textContent = found.length && rest > 5e-4 ? `${percent(rest)} on other points` : "";
  }

  // The name of a point, to go on to it where it is drawn.
  function link(parent, at, position) {
    const drawn = position < sides[at].drawn;
    const name = add(parent, drawn ? "button" : "span", nameOf(at, position));
    if (drawn) name.addEventListener("click", () => choose(at, position, true));
  }

  // Where other matchings that the search found send a source point.
  function tellOthers(sent) {
    const body = element("others-table").tBodies[0];
    body.replaceChildren();
    element("others-table").hidden = sent.length === 0;
    sent.forEach(({ number, position, shift }) => {
      const line = add(body, "tr");
      add(line, "td", String(number));
      const cell = add(line, "td");
      link(cell, 1, position);
      add(cell, "span", percent(shift), "known");
    });
  }

  // A row for each source point that is drawn.
  function pairs() {
    const rows = Array.from({ length: sides[0].drawn }, (_, position) => {
      const [best, next] = matchesOf(0, position);
      if (!best) return [nameOf(0, position), "", "", "", "", ""];
      const back = best.position < sides[1].drawn ? matchesOf(1, best.position)[0] : null;
      const second = next ? [nameOf(1, next.position), percent(next.share)] : ["", ""];
      return [nameOf(0, position), nameOf(1, best.position), percent(best.share), ...second, back ? (back.position === position ? "yes" : "no") : ""];
    });
    table("pairs", { head: ["source", "target", "share", "runner-up", "its share", "mutual"], rows, marked: [] });
  }

  function lookUp() {
    const text = element("lookup-index").value;
    if (text === "") return;
    const [at, index] = [Number(element("lookup-side").value), Number(text)];
    const side = sides[at];
    const named = side.names ? side.names.indexOf(text) : -1;
    const position = named >= 0 ? named : side.position.get(index);
    if (position !== undefined && position < side.drawn) {
      choose(at, position, true);
      return;
    }
    const known = named >= 0 || (Number.isInteger(index) && index >= 0 && index < side.size);
    element("message").textContent = !known && side.names
      ? `no ${side.name} point that is drawn has the name ${text}` : known
      ? `${side.name} ${text} is not among the points that are drawn`
      : `${side.name} points go from 0 to ${side.size - 1}`;
  }

  // ---- how the solve went

  // Whole decades around the values, two or more, so that there are marks on the axis.
  function decadesAround(values) {
    if (values.length === 0) return {};
    const [low, high] = [Math.floor(Math.log10(Math.min(...values))), Math.ceil(Math.log10(Math.max(...values)))];
    return { range: [Math.min(low, high - 2), high + 0.05] };
  }

  function chart(id, values, log) {
    const { iteration, epsilon, elapsed } = page.history;
    const text = iteration.map((n, at) => `check ${at + 1}, iteration ${n}<br>epsilon ${epsilon[at]?.toPrecision(3)}<br>after ${elapsed[at]?.toFixed(2)} s`);
    const trace = {
      type: "scatter", mode: "lines+markers", x: iteration.map((_, at) => at + 1), y: values, text,
      line: { color: "#0072b2", width: 1.5 }, marker: { size: 5 }, hovertemplate: "%{y:.4g}<br>%{text}<extra></extra>",
    };
    const axis = { zeroline: false, gridcolor: "#e3e8ed", automargin: true };
    const known = values.filter((value) => (log ? value > 0 : value !== null));
    if (known.length === 0) return null;
    const decades = Math.log10(Math.max(...known) / Math.min(...known));
    const told = values.filter((value) => value !== null);
    const middle = (Math.max(...told) + Math.min(...told)) / 2;
    const least = 0.005 * Math.abs(middle);  // a change of less than a percent is not blown up
    const still = Math.max(...told) - middle < least ? { range: [middle - least, middle + least] } : {};
    const scale = log ? { type: "log", dtick: Math.max(1, Math.ceil(decades / 6)), tickformat: ".0e", ...decadesAround(known) } : { nticks: 6, exponentformat: "e", ...still };
    const layout = {
      font: FONT, margin: { l: 55, r: 10, t: 8, b: 38 }, showlegend: false,
      xaxis: { ...axis, title: { text: "check", standoff: 6 }, tickformat: "d", dtick: Math.ceil(iteration.length / 10) },
      yaxis: { ...axis, ...scale },
    };
    return Plotly.newPlot(filled(id), [trace], layout, { responsive: true, displayModeBar: false });
  }

  function histories() {
    const { cost, marginal_error: error } = page.history;
    return [chart("history-cost", cost, false), chart("history-error", error, true)];
  }

  // ---- start

  texts();
  colourings.forEach((entry, at) => {
    const option = add(element("colouring"), "option", entry.title);
    option.value = at;
  });
  element("colouring").addEventListener("change", (event) => {
    colouring = colourings[Number(event.target.value)];
    recolour();
  });
  element("lookup").addEventListener("submit", (event) => { event.preventDefault(); lookUp(); });
  element("lookup").addEventListener("input", lookUp);
  if (sides.some((side) => side.names)) Object.assign(element("lookup-index"), { type: "text", placeholder: "name or index" });
  element("pairs-details").addEventListener("toggle", pairs, { once: true });
  element("unpin").addEventListener("click", release);
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") release(); });
  legend();
  state.place = (at, index) => {
    const { left, top } = element(`cloud-${at}`).getBoundingClientRect();
    const [x, y] = view(at).place(sides[at].position.get(index));
    return [left + x, top + y];
  };
  const drawings = [draw(0), draw(1), ...histories()];
  leaveOutEmptyPanels();
  Promise.all(drawings).then(() => {
    [0, 1].forEach(listen);
    follow();
    state.ready = true;
  });
})();
