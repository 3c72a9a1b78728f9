"use strict";

// Search as one types, and the switch between light and dark.  The names are loaded as a script,
// because a page that was opened from a disk may not read other files.

(() => {
  const root = document.documentElement;
  const prefix = root.dataset.root;
  const input = document.getElementById("search");
  const list = document.getElementById("found");
  const MOST = 30;
  let chosen = 0;

  const remembered = () => { try { return localStorage.getItem("atlas-theme"); } catch { return null; } };
  const remember = (theme) => { try { localStorage.setItem("atlas-theme", theme); } catch { /* private mode */ } };
  if (remembered()) root.dataset.theme = remembered();
  document.getElementById("theme").addEventListener("click", () => {
    const dark = matchMedia("(prefers-color-scheme: dark)").matches;
    const shown = root.dataset.theme || (dark ? "dark" : "light");
    root.dataset.theme = shown === "dark" ? "light" : "dark";
    remember(root.dataset.theme);
  });

  function load(then) {
    if (window.ATLAS) return then();
    const script = document.createElement("script");
    script.src = prefix + "names.js";
    script.onload = then;
    document.head.append(script);
  }

  // Lower is better; -1 is no match.  The last part of a qualified name counts most.
  function rank(name, query) {
    const place = name.indexOf(query);
    if (place < 0) return -1;
    const bare = name.slice(Math.max(name.lastIndexOf("."), name.lastIndexOf(":"), name.lastIndexOf("/")) + 1);
    if (name === query) return 0;
    if (bare === query) return 1;
    if (bare.startsWith(query)) return 2 + bare.length / 1000;
    if (name.startsWith(query)) return 4 + name.length / 1000;
    const starts = place === 0 || "._:/".includes(name[place - 1]);
    return (starts ? 5 : 6) + name.length / 1000;
  }

  function matches(query) {
    const found = [];
    for (const row of window.ATLAS.names) {
      const score = rank(row[0].toLowerCase(), query);
      if (score >= 0) found.push([score, row]);
    }
    found.sort((a, b) => a[0] - b[0] || (a[1][0] < b[1][0] ? -1 : +(a[1][0] > b[1][0])));
    return found.slice(0, MOST).map((each) => each[1]);
  }

  function element(tag, kind, ...children) {
    const made = document.createElement(tag);
    if (kind) made.className = kind;
    made.append(...children);
    return made;
  }

  function shown(row, query) {
    const [name, kind, page, anchor, doc] = row;
    const place = name.toLowerCase().indexOf(query);
    const link = element("a", "",
      element("span", "kind", kind), name.slice(0, place),
      element("mark", "", name.slice(place, place + query.length)), name.slice(place + query.length));
    const path = window.ATLAS.pages[page];
    const file = path.replace(/_docs\.html$/, "");
    link.append(element("span", "where", kind === "file" ? doc : doc ? `${file} · ${doc}` : file));
    const address = path.split("/").map(encodeURIComponent).join("/");
    link.href = prefix + address + (anchor ? "#" + encodeURIComponent(anchor) : "");
    return element("li", "", link);
  }

  function choose(number) {
    const items = list.querySelectorAll("li");
    if (!items.length) return;
    chosen = (number + items.length) % items.length;
    items.forEach((item, at) => item.classList.toggle("chosen", at === chosen));
    items[chosen].scrollIntoView({ block: "nearest" });
  }

  function search() {
    const query = input.value.trim().toLowerCase();
    if (!query) { list.hidden = true; list.replaceChildren(); return; }
    load(() => {
      if (input.value.trim().toLowerCase() !== query) return;
      const rows = matches(query);
      list.replaceChildren(...rows.map((row) => shown(row, query)));
      if (!rows.length) list.replaceChildren(element("div", "none", "No name contains this."));
      list.hidden = false;
      choose(0);
    });
  }

  input.addEventListener("input", search);
  input.addEventListener("focus", search);
  input.addEventListener("keydown", (event) => {
    if (event.key === "ArrowDown") choose(chosen + 1);
    else if (event.key === "ArrowUp") choose(chosen - 1);
    else if (event.key === "Enter") { const link = list.querySelector("li.chosen a"); if (link) link.click(); }
    else if (event.key === "Escape") { list.hidden = true; input.blur(); }
    else return;
    event.preventDefault();
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "/" && document.activeElement !== input && !event.ctrlKey && !event.metaKey) {
      event.preventDefault();
      input.focus();
    }
  });
  document.addEventListener("click", (event) => {
    if (!event.target.closest(".search")) list.hidden = true;
  });
})();
