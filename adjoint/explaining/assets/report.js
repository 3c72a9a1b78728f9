"use strict";

// The report of a compilation.  Everything it shows is in the page.  Items (lines of source, values
// of graphs, kernels) are linked by what they compute; long lists draw only the rows in view.

(() => {
  const DATA = JSON.parse(document.getElementById("data").textContent);
  const ROW = 20;
  const root = document.documentElement;
  const byId = (id) => document.getElementById(id);

  function made(tag, kind, ...children) {
    const element = document.createElement(tag);
    if (kind) element.className = kind;
    element.append(...children);
    return element;
  }
  function drawn(tag, attributes, ...children) {
    const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.append(...children);
    return element;
  }
  const duration = (s) => (s < 1e-3 ? `${(1e6 * s).toFixed(1)} µs` : s < 1 ? `${(1e3 * s).toFixed(1)} ms` : `${s.toFixed(2)} s`);
  function size(bytes) {
    for (const unit of ["B", "KiB", "MiB", "GiB"]) {
      if (bytes < 1024) return `${unit === "B" ? bytes : bytes.toFixed(1)} ${unit}`;
      bytes /= 1024;
    }
    return `${bytes.toFixed(1)} TiB`;
  }
  const short = (file) => file.slice(file.lastIndexOf("/") + 1);

  // Items: a kind and a number.  `values` are numbered through all graphs.
  const VALUES = [];
  DATA.graphs.forEach((graph, place) => {
    graph.first = VALUES.length;
    for (const value of graph.values) VALUES.push({ ...value, graph: place });
  });
  const index = (pairs) => {
    const found = new Map();
    for (const [key, item] of pairs) {
      const there = found.get(key);
      if (there) there.push(item); else found.set(key, [item]);
    }
    return found;
  };
  const everyValue = (field) => index(VALUES.flatMap((v, i) => [v[field]].flat().filter((k) => k !== null).map((k) => [k, i])));
  const OF_ORIGIN = everyValue("origins");
  const OF_REGION = everyValue("derivative_of");
  const OF_LINE = everyValue("line");
  const OF_KERNEL = everyValue("kernels");
  const KERNELS_OF_LINE = index(DATA.kernels.flatMap((k, i) => k.lines.map((line) => [line, i])));

  // What an item is linked to: sets of lines, values and kernels.
  function linked(kind, number) {
    const found = { line: new Set(), value: new Set(), kernel: new Set() };
    found[kind].add(number);
    const add = (name, numbers) => { for (const each of numbers || []) found[name].add(each); };
    if (kind === "line") {
      add("value", OF_LINE.get(number));
      add("kernel", KERNELS_OF_LINE.get(number));
    } else if (kind === "kernel") {
      add("line", DATA.kernels[number].lines);
      add("value", OF_KERNEL.get(number));
    } else {
      const value = VALUES[number];
      if (value.line !== null) found.line.add(value.line);
      add("kernel", value.kernels);
      for (const origin of value.origins) { add("value", OF_ORIGIN.get(origin)); add("value", OF_REGION.get(origin)); }
      for (const origin of value.derivative_of) add("value", OF_ORIGIN.get(origin));
      for (const other of found.value) add("kernel", VALUES[other].kernels);
    }
    return found;
  }

  // A list that draws the rows in view.
  class Rows {
    constructor(place, kind) {
      this.kind = kind;
      this.element = made("div", "rows");
      this.element.tabIndex = 0;
      this.space = made("div", "space");
      this.element.append(this.space);
      place.append(this.element);
      this.items = [];
      this.drawnRows = new Map();
      this.element.addEventListener("scroll", () => this.draw());
      new ResizeObserver(() => this.draw()).observe(this.element);
    }
    // Each item: { number, fill(row) }; number null: it is linked to nothing.
    show(items) {
      this.items = items;
      this.places = new Map(items.map((item, place) => [item.number, place]));
      this.space.style.height = `${ROW * items.length}px`;
      this.element.scrollTop = 0;
      this.redraw();
    }
    redraw() {
      for (const row of this.drawnRows.values()) row.remove();
      this.drawnRows.clear();
      this.draw();
    }
    draw() {
      const first = Math.max(0, Math.floor(this.element.scrollTop / ROW) - 10);
      const last = Math.min(this.items.length, first + Math.ceil(this.element.clientHeight / ROW) + 20);
      for (const [place, row] of this.drawnRows) {
        if (place < first || place >= last) { row.remove(); this.drawnRows.delete(place); }
      }
      for (let place = first; place < last; place++) {
        if (this.drawnRows.has(place)) continue;
        const item = this.items[place];
        const row = made("div", "row");
        row.style.top = `${ROW * place}px`;
        item.fill(row);
        if (item.number === null) row.classList.add("empty");
        else {
          row.dataset.item = `${this.kind}:${item.number}`;
          row.addEventListener("mouseenter", () => hover(this.kind, item.number));
          row.addEventListener("mouseleave", () => hover(null));
          row.addEventListener("click", () => pin(this.kind, item.number));
        }
        this.drawnRows.set(place, row);
        this.element.append(row);
      }
      this.mark();
    }
    mark() {
      for (const [place, row] of this.drawnRows) {
        const number = this.items[place].number;
        row.classList.toggle("pinned", number !== null && !!pinned && pinned.kind === this.kind && pinned.number === number);
        row.classList.toggle("near", number !== null && !!near && near[this.kind].has(number));
      }
    }
    reveal(numbers) {
      let best = Infinity;
      for (const number of numbers) {
        const place = this.places.get(number);
        if (place !== undefined && place < best) best = place;
      }
      if (best === Infinity) return false;
      const top = ROW * best, height = this.element.clientHeight;
      if (top < this.element.scrollTop || top > this.element.scrollTop + height - 2 * ROW) {
        this.element.scrollTop = Math.max(0, top - height / 3);
      }
      return true;
    }
  }

  let pinned = null, pinnedLinks = null, near = null;
  const lists = [];
  const markAll = () => lists.forEach((each) => each.mark());
  function hover(kind, number) {
    near = kind === null ? pinnedLinks : linked(kind, number);
    markAll();
  }
  function pin(kind, number, from = null) {
    pinned = { kind, number };
    near = pinnedLinks = linked(kind, number);
    showTab("links");
    for (const column of graphColumns) {
      // The pinned value is shown; the other column shows a graph that has something linked.
      const own = kind === "value" && column.role === roleOf(number);
      const graphs = [...near.value].filter((v) => roleOf(v) === column.role).map((v) => VALUES[v].graph);
      if (own && column.graph !== VALUES[number].graph) column.choose(VALUES[number].graph);
      else if (!own && graphs.length && !graphs.includes(column.graph)) column.choose(preferred(graphs));
    }
    if (kind === "line" && source.file !== DATA.lines[number].file) source.choose(DATA.lines[number].file);
    const firstLine = [...near.line][0];
    if (kind !== "line" && firstLine !== undefined && source.file !== DATA.lines[firstLine].file) source.choose(DATA.lines[firstLine].file);
    lists.forEach((each) => each.reveal(each.kind === kind ? [number] : near[each.kind]));
    markAll();
    detail();
    history.replaceState(null, "", `#${kind}:${number}`);
  }
  function unpin() {
    pinned = near = pinnedLinks = null;
    byId("details").replaceChildren();
    markAll();
    history.replaceState(null, "", "#");
  }
  const roleOf = (number) => (DATA.graphs[VALUES[number].graph].order > 0 ? "derivative" : "forward");

  // Columns

  function column(title) {
    const element = made("div", "column");
    const heading = made("h2", "", title);
    element.append(heading);
    byId("links").append(element);
    return { element, heading };
  }

  const source = (() => {
    const { element, heading } = column("Source");
    const rows = new Rows(element, "line");
    lists.push(rows);
    const files = Object.keys(DATA.files);
    const select = made("select");
    select.setAttribute("aria-label", "File");
    for (const file of files) select.append(new Option(short(file), file));
    heading.append(select);
    const numbers = new Map();
    DATA.lines.forEach((line, number) => {
      const key = `${line.file}:${line.line}`;
      if (!numbers.has(key)) numbers.set(key, number);
    });
    const it = {
      file: null, rows,
      choose(file) {
        it.file = file;
        select.value = file;
        rows.show((DATA.files[file] || "").split("\n").map((text, place) => {
          const number = numbers.get(`${file}:${place + 1}`);
          return { number: number === undefined ? null : number, fill: (row) => row.append(made("span", "number", String(place + 1)), text) };
        }));
        it.scroll();
      },
      // To the first line that something was compiled of; has no effect while the tab is hidden.
      scroll() {
        const first = DATA.lines.filter((line) => line.file === it.file).map((line) => line.line);
        rows.element.scrollTop = Math.max(0, ROW * (Math.min(...first) - 4));
      },
    };
    select.addEventListener("change", () => it.choose(select.value));
    if (files.length) it.choose(DATA.lines.length ? DATA.lines[0].file : files[0]);
    return it;
  })();

  // A line may be known under several functions; they are one row.
  function canonical() {
    const first = new Map();
    DATA.lines.forEach((line, number) => {
      const key = `${line.file}:${line.line}`;
      if (!first.has(key)) first.set(key, number);
      line.row = first.get(key);
    });
    for (const value of VALUES) if (value.line !== null) value.line = DATA.lines[value.line].row;
    for (const kernel of DATA.kernels) kernel.lines = [...new Set(kernel.lines.map((n) => DATA.lines[n].row))];
  }

  function graphColumn(role, graphs) {
    const { element, heading } = column(role === "forward" ? "Program" : "Derivative");
    const rows = new Rows(element, "value");
    lists.push(rows);
    const select = made("select");
    select.setAttribute("aria-label", `Graph: ${role}`);
    for (const place of graphs) select.append(new Option(DATA.graphs[place].name || DATA.graphs[place].title, place));
    heading.append(select);
    const it = {
      role, graph: null, rows,
      choose(place) {
        it.graph = place;
        select.value = place;
        const graph = DATA.graphs[place];
        rows.show(graph.values.map((value, each) => ({
          number: graph.first + each,
          fill: (row) => {
            row.append(made("span", "", value.name), made("span", "soft", `: ${value.type} = `), value.operation);
            row.title = `${value.name}: ${value.type} = ${value.operation}`;
          },
        })));
        rows.mark();
      },
    };
    select.addEventListener("change", () => it.choose(Number(select.value)));
    return it;
  }
  canonical();
  // The largest that runs: a program may begin with graphs that compute nothing.
  const preferred = (graphs) => {
    const size = (g) => DATA.graphs[g].values.length;
    const run = graphs.filter((g) => DATA.graphs[g].is_lowered && size(g));
    return (run.length ? run : graphs).reduce((best, g) => (size(g) > size(best) ? g : best));
  };
  const graphColumns = [["forward", (g) => g.order === 0], ["derivative", (g) => g.order > 0]].flatMap(([role, is]) => {
    const graphs = DATA.graphs.map((g, place) => place).filter((place) => is(DATA.graphs[place]));
    if (!graphs.length) return [];
    const made = graphColumn(role, graphs);
    made.choose(preferred(graphs));
    return [made];
  });

  const kernelRows = (() => {
    const { element } = column("Kernels");
    const rows = new Rows(element, "kernel");
    lists.push(rows);
    const seconds = new Map();
    for (const timing of DATA.timings) timing.kernels.forEach((kernel, place) => seconds.set(kernel, place ? null : timing.seconds));
    rows.show(DATA.kernels.map((kernel, number) => ({
      number,
      fill: (row) => {
        const time = seconds.get(number);
        row.append(made("span", "number", time === undefined ? "" : time === null ? "\u2033" : duration(time)), ` ${kernel.title || kernel.name}`);
        row.title = kernel.name;
        row.firstChild.style.width = "5.2rem";
      },
    })));
    return rows;
  })();

  // What is known of the pinned item.
  const lineText = (number) => `${short(DATA.lines[number].file)}:${DATA.lines[number].line}`;
  function linkTo(kind, number, text) {
    const element = made("button", "link", text);
    element.type = "button";
    element.addEventListener("click", () => pin(kind, number));
    return element;
  }
  // A line as Python shows it: "model.py:12 in forward: y = x / 2".
  const PLACES = new Map(DATA.lines.map((line, number) => [`${line.file}:${line.line}`, number]));
  function linkToPlace(shown) {
    const place = shown.match(/^.*?:\d+(?= in )/);
    const number = place && PLACES.get(place[0]);
    if (number === undefined || number === null) return made("code", "", shown);
    return linkTo("line", DATA.lines[number].row, `${lineText(number)} ${DATA.lines[number].text.trim()}`);
  }
  function listed(title, elements) {
    if (!elements.length) return [];
    const parts = [made("b", "", title)];
    elements.slice(0, 40).forEach((element, place) => parts.push(place ? " · " : "", element));
    if (elements.length > 40) parts.push(` and ${elements.length - 40} more`);
    return [made("div", "", ...parts)];
  }
  function detail() {
    const { kind, number } = pinned;
    const parts = [];
    if (kind === "line") parts.push(made("div", "", made("b", "", lineText(number)), made("code", "", DATA.lines[number].text.trim())));
    if (kind === "value") {
      const value = VALUES[number];
      parts.push(made("div", "", made("b", "", value.name), made("code", "", `${value.type} = ${value.operation}`)));
    }
    if (kind === "kernel") {
      const kernel = DATA.kernels[number];
      parts.push(made("div", "", made("b", "", kernel.title || kernel.name), `reads ${kernel.read} bytes, writes ${kernel.written}`));
      for (const remark of kernel.remarks) parts.push(made("div", "", remark));
    }
    if (kind !== "line") parts.push(...listed("line", [...near.line].map((n) => linkTo("line", n, `${lineText(n)} ${DATA.lines[n].text.trim()}`))));
    const others = [...near.value].filter((v) => kind !== "value" || v !== number);
    const grouped = new Map();
    for (const v of others) {
      const title = DATA.graphs[VALUES[v].graph].name || DATA.graphs[VALUES[v].graph].title;
      grouped.set(title, [...(grouped.get(title) || []), linkTo("value", v, VALUES[v].name)]);
    }
    for (const [title, links] of grouped) parts.push(...listed(title, links));
    if (kind !== "kernel") parts.push(...listed("kernels", [...near.kernel].map((n) => linkTo("kernel", n, DATA.kernels[n].title || DATA.kernels[n].name))));
    if (kind === "kernel") parts.push(made("pre", "", DATA.kernels[number].text));
    byId("details").replaceChildren(...parts);
  }

  // Overview: the pipeline with times, fallbacks, compilations.
  function table(heads, rows) {
    const head = made("tr", "", ...heads.map((text) => made("th", text.startsWith("#") ? "n" : "", text.replace(/^#/, ""))));
    const body = made("tbody");
    for (const cells of rows) {
      const row = made("tr");
      cells.forEach((cell, place) => {
        const td = made("td", heads[place].startsWith("#") ? "n" : "");
        td.append(...[cell].flat());
        row.append(td);
      });
      body.append(row);
    }
    return made("table", "", made("thead", "", head), body);
  }
  const colour = (place) => `hsl(${(place * 47) % 360} 55% 52%)`;
  (() => {
    const place = byId("overview");
    const total = (list) => list.reduce((sum, each) => sum + each.seconds, 0);
    const again = DATA.compilations.filter((each) => each.reason);
    const figures = [
      [String(DATA.graphs.length), "graphs"],
      [String(DATA.kernels.length), "kernels"],
      [duration(total(DATA.stages)), "in the compiler"],
      ...(DATA.timings.length ? [[duration(total(DATA.timings)), "a step, as measured"]] : []),
      ...(DATA.memory && DATA.memory.peak !== null ? [[size(DATA.memory.peak), "peak of memory, predicted"]] : []),
      [String(again.length), "recompilations"],
      [String(DATA.fallbacks.length), "fallbacks to eager"],
    ];
    place.append(made("h1", "", DATA.function));
    place.append(made("div", "figures", ...figures.map(([n, what]) => made("div", "", made("strong", "", n), made("span", "", what)))));
    place.append(made("h2", "", "Pipeline"));
    const names = [...new Set(DATA.stages.map((each) => each.stage))];
    for (const order of [...new Set(DATA.stages.map((each) => each.order))].sort()) {
      const stages = DATA.stages.filter((each) => each.order === order);
      const sum = total(stages);
      const label = order === 0 ? "the program" : `derivative of order ${order}`;
      place.append(made("div", "", `${label}: ${duration(sum)}`));
      const bar = made("div", "stages");
      for (const each of stages) {
        const part = made("span");
        part.style.width = `${(100 * each.seconds) / sum}%`;
        part.style.background = colour(names.indexOf(each.stage));
        part.title = `${each.stage}: ${duration(each.seconds)}`;
        bar.append(part);
      }
      place.append(bar);
    }
    const rows = names.map((name, n) => {
      const own = DATA.stages.filter((each) => each.stage === name);
      const swatch = made("span", "swatch");
      swatch.style.background = colour(n);
      return [total(own), [[swatch, name], String(own.length), duration(total(own))]];
    });
    rows.sort((a, b) => b[0] - a[0]);
    place.append(table(["stage or pass", "#runs", "#time"], rows.map((each) => each[1])));
    if (DATA.fallbacks.length) {
      place.append(made("h2", "", "What fell back to eager"));
      place.append(table(["what", "where"], DATA.fallbacks.map((each) => [each.message, each.source ? `${short(each.source.file)}:${each.source.line}` : ""])));
    }
    const log = byId("compilations");
    log.append(made("h1", "", "Compilations"));
    log.append(table(["function", "what", "#time", "why again"], DATA.compilations.map((each) => [
      each.source ? `${each.function} (${short(each.source.file)}:${each.source.line})` : each.function,
      each.what, duration(each.seconds), made("span", each.reason ? "again" : "", each.reason || "first time"),
    ])));
    for (const why of DATA.cuda_graphs) log.append(made("p", "", `Not replayed as a CUDA graph: ${why}`));
  })();

  // Passes: before and after.
  (() => {
    const place = byId("passes");
    const select = made("select");
    select.setAttribute("aria-label", "Graph");
    DATA.graphs.forEach((graph, n) => { if (graph.passes.length) select.append(new Option(graph.name || graph.title, n)); });
    const list = made("div"), text = made("pre", "diff");
    function choose() {
      const graph = DATA.graphs[Number(select.value)];
      if (!graph) return;
      list.replaceChildren(table(["pass", "#lines removed", "#added", "#time"], graph.passes.map((each) => {
        const name = made("button", "link", each.name);
        name.addEventListener("click", () => text.replaceChildren(...(each.changes.length ? each.changes : ["(no change)"]).map((line) =>
          made("div", line[0] === "+" ? "added" : line[0] === "-" ? "removed" : "", line))));
        return [each.changes.length ? name : made("span", "soft", each.name), String(each.removed), String(each.added), duration(each.seconds)];
      })));
      text.replaceChildren();
    }
    select.addEventListener("change", choose);
    place.append(made("h1", "", "Passes, before and after"), select, list, text);
    choose();
  })();

  // Memory: the picture is drawn already.
  (() => {
    if (!DATA.memory) return;
    const place = byId("memory");
    const rows = DATA.memory.saved.filter((each) => !each.exists_anyway).map((each) => [
      size(each.bytes), made("code", "", each.type), each.op,
      each.line === null ? "" : linkTo("line", DATA.lines[each.line].row, `${lineText(each.line)} ${DATA.lines[each.line].text.trim()}`),
      each.why,
    ]);
    if (rows.length) place.append(made("h2", "", "Saved values"), table(["#bytes", "type", "computed by", "your line", "saved because"], rows));
  })();

  // Roofline
  (() => {
    const place = byId("roofline");
    const timings = [...DATA.timings].sort((a, b) => b.seconds - a.seconds);
    place.append(made("h1", "", "Kernels and library calls, as measured"));
    if (!timings.length) { place.append(made("p", "", "Nothing was measured.")); return; }
    const rates = DATA.rates || { bytes_per_second: 2e10, operators_per_second: 2e11 };
    const points = timings.filter((each) => each.flops > 0 && each.bytes > 0 && each.seconds > 0);
    const [WIDTH, HEIGHT, LEFT, BOTTOM] = [860, 390, 64, 54];
    const xs = [...points.map((each) => each.flops / each.bytes), 0.1, 100];
    const ys = [...points.map((each) => each.flops / each.seconds), rates.operators_per_second];
    const [x0, x1] = [Math.floor(Math.log10(Math.min(...xs))), Math.ceil(Math.log10(Math.max(...xs)))];
    const [y0, y1] = [Math.floor(Math.log10(Math.min(...ys))), Math.ceil(Math.log10(Math.max(...ys)))];
    const px = (v) => LEFT + ((WIDTH - LEFT - 24) * (Math.log10(v) - x0)) / (x1 - x0);
    const py = (v) => HEIGHT - BOTTOM - ((HEIGHT - BOTTOM - 10) * (Math.log10(v) - y0)) / (y1 - y0);
    const svg = drawn("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "roof", role: "img" });
    for (let e = x0; e <= x1; e++) {
      svg.append(drawn("line", { class: "grid", x1: px(10 ** e), x2: px(10 ** e), y1: 10, y2: HEIGHT - BOTTOM }));
      svg.append(drawn("text", { x: px(10 ** e), y: HEIGHT - BOTTOM + 22, class: "middle" }, String(10 ** e)));
    }
    for (let e = y0; e <= y1; e++) {
      svg.append(drawn("line", { class: "grid", x1: LEFT, x2: WIDTH - 24, y1: py(10 ** e), y2: py(10 ** e) }));
      svg.append(drawn("text", { x: LEFT - 6, y: py(10 ** e) + 4, class: "end" }, e >= 9 ? `${10 ** (e - 9)} G` : e >= 6 ? `${10 ** (e - 6)} M` : e >= 3 ? `${10 ** (e - 3)} k` : String(10 ** e)));
    }
    svg.append(drawn("text", { x: (LEFT + WIDTH) / 2, y: HEIGHT - 12, class: "middle" }, "FLOP for each byte"));
    const knee = rates.operators_per_second / rates.bytes_per_second;
    const from = Math.max(10 ** x0, 10 ** y0 / rates.bytes_per_second);
    svg.append(drawn("line", { class: "limit", x1: px(from), y1: py(from * rates.bytes_per_second), x2: px(Math.min(knee, 10 ** x1)), y2: py(Math.min(knee, 10 ** x1) * rates.bytes_per_second) }));
    if (knee < 10 ** x1) svg.append(drawn("line", { class: "limit", x1: px(knee), y1: py(rates.operators_per_second), x2: WIDTH - 24, y2: py(rates.operators_per_second) }));
    const most = Math.max(...timings.map((each) => each.seconds));
    for (const each of points) {
      const circle = drawn("circle", { cx: px(each.flops / each.bytes), cy: py(each.flops / each.seconds), r: 3 + 11 * Math.sqrt(each.seconds / most) });
      circle.append(drawn("title", {}, `${each.name}\n${duration(each.seconds)}, ${size(each.bytes)}, ${each.flops.toLocaleString()} FLOP`));
      if (each.kernels.length) circle.addEventListener("click", () => pin("kernel", each.kernels[0]));
      svg.append(circle);
    }
    place.append(made("div", "drawing", svg));
    place.append(made("p", "", "FLOP a second, over the nominal limits of the machine; the size of a point is its share of the time."));
    place.append(table(["#time", "what", "#order", "#moved", "#GB/s", "#FLOP", "your lines"], timings.map((each) => [
      duration(each.seconds),
      each.kernels.length ? linkTo("kernel", each.kernels[0], each.name) : each.name,
      String(each.order), size(each.bytes), (each.bytes / each.seconds / 1e9).toFixed(2), each.flops.toLocaleString(),
      each.lines.map((line) => made("div", "", linkToPlace(line))),
    ])));
  })();

  // Tabs, search, keys, theme.
  const tabs = [...document.querySelectorAll("header nav.tabs button")];
  let wasShown = false;
  function showTab(name) {
    for (const button of tabs) button.setAttribute("aria-selected", String(button.dataset.tab === name));
    for (const section of document.querySelectorAll("section.tab")) section.classList.toggle("shown", section.id === name);
    document.body.dataset.tab = name;
    if (name !== "links") return;
    if (!wasShown) source.scroll();
    wasShown = true;
    lists.forEach((each) => each.draw());
  }
  tabs.forEach((button) => button.addEventListener("click", () => showTab(button.dataset.tab)));

  const SEARCHED = [
    ...DATA.kernels.map((kernel, n) => [kernel.title || kernel.name, "kernel", "kernel", n, kernel.name]),
    ...DATA.lines.flatMap((line, n) => (line.row === n ? [[line.text.trim(), "line", "line", n, `${short(line.file)}:${line.line}`]] : [])),
    ...VALUES.map((value, n) => [value.name, "value", "value", n, `${value.operation} · ${DATA.graphs[value.graph].title}`]),
  ];
  const input = byId("search"), list = byId("found");
  let chosen = 0, results = [];
  function searched() {
    const query = input.value.trim().toLowerCase();
    list.hidden = !query;
    if (!query) return;
    results = [];
    for (const row of SEARCHED) {
      const place = row[0].toLowerCase().indexOf(query);
      const score = place === 0 ? 0 : place > 0 ? 1 : row[4].toLowerCase().includes(query) ? 2 : -1;
      if (score >= 0) results.push([score, row]);
      if (results.length > 2000) break;
    }
    results.sort((a, b) => a[0] - b[0]);
    results = results.slice(0, 30).map((each) => each[1]);
    chosen = 0;
    list.replaceChildren(...(results.length ? results.map((row, place) => {
      const link = made("a", "", made("span", "kind", row[1]), row[0], made("span", "where", row[4]));
      link.href = "#";
      link.addEventListener("click", (event) => { event.preventDefault(); taken(place); });
      return made("li", place === chosen ? "chosen" : "", link);
    }) : [made("li", "none", "Nothing contains this.")]));
  }
  function taken(place) {
    const row = results[place];
    if (!row) return;
    list.hidden = true;
    input.blur();
    pin(row[2], row[3]);
  }
  input.addEventListener("input", searched);
  input.addEventListener("keydown", (event) => {
    if (event.key === "Enter") taken(chosen);
    else if (event.key === "Escape") { input.value = ""; list.hidden = true; input.blur(); }
    else if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      chosen = Math.max(0, Math.min(results.length - 1, chosen + (event.key === "ArrowDown" ? 1 : -1)));
      [...list.children].forEach((each, place) => each.classList.toggle("chosen", place === chosen));
    }
  });
  function step(by) {
    const kind = pinned ? pinned.kind : "line";
    const rows = lists.find((each) => each.kind === kind && (!pinned || each.places.has(pinned.number)));
    if (!rows) return;
    const numbers = rows.items.map((item) => item.number).filter((n) => n !== null);
    const at = pinned ? numbers.indexOf(pinned.number) : -1;
    const next = numbers[Math.max(0, Math.min(numbers.length - 1, at + by))];
    if (next !== undefined) pin(kind, next);
  }
  document.addEventListener("keydown", (event) => {
    if (event.target === input || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "/") { event.preventDefault(); input.focus(); }
    else if (event.key === "Escape") unpin();
    else if (event.key === "j" || event.key === "k") step(event.key === "j" ? 1 : -1);
    else if (event.key >= "1" && event.key <= String(tabs.length)) showTab(tabs[Number(event.key) - 1].dataset.tab);
    else if (event.key === "t") byId("theme").click();
  });
  const kept = (() => { try { return localStorage.getItem("adjoint-theme"); } catch { return null; } })();
  if (kept) root.dataset.theme = kept;
  byId("theme").addEventListener("click", () => {
    const dark = matchMedia("(prefers-color-scheme: dark)").matches;
    const shown = root.dataset.theme || (dark ? "dark" : "light");
    root.dataset.theme = shown === "dark" ? "light" : "dark";
    try { localStorage.setItem("adjoint-theme", root.dataset.theme); } catch { /* private mode */ }
  });
  showTab("overview");
  const asked = /^#(line|value|kernel):(\d+)$/.exec(location.hash);
  if (asked) pin(asked[1], Number(asked[2]));
  window.REPORT = { pin, unpin, linked, VALUES, DATA };
  root.dataset.ready = "yes";
})();
