"use strict";
(() => {
  const tip = document.getElementById("tip");
  const three = value => {
    if (value === 0) return "0";
    const rounded = Number(value.toPrecision(3));
    const places = Math.max(0, 2 - Math.floor(Math.log10(Math.abs(rounded))));
    return Math.abs(rounded) >= 100
      ? Math.round(value).toLocaleString("en")
      : rounded.toLocaleString("en", { maximumFractionDigits: Math.min(places, 12) });
  };
  const scaled = (value, steps) => {
    const [size, unit] = steps.find(([size]) => Math.abs(value) >= size) || steps[steps.length - 1];
    return three(value / size) + " " + unit;
  };
  const clock = seconds => {
    if (Math.abs(seconds) < 60) return three(seconds) + " s";
    const whole = Math.round(seconds), two = part => String(part).padStart(2, "0");
    const hours = Math.floor(whole / 3600), minutes = Math.floor(whole / 60) % 60;
    return hours ? `${hours}:${two(minutes)}:${two(whole % 60)}` : `${minutes}:${two(whole % 60)}`;
  };
  const BYTES = ["PiB", "TiB", "GiB", "MiB", "KiB", "B"].map((unit, i) => [1024 ** (5 - i), unit]);
  const TIMES = [[6e4, "min"], [1e3, "s"], [1, "ms"], [1e-3, "µs"], [1e-6, "ns"]];
  const show = {
    ms: value => (value === 0 ? "0 ms" : scaled(value, TIMES)),
    s: clock,
    bytes: value => (value === 0 ? "0 B" : scaled(value, BYTES)),
    percent: value => three(value) + " %",
    number: three,
    count: value => Math.round(value).toLocaleString("en"),
    per_s: value => three(value) + "/s",
    watt: value => three(value) + " W",
    celsius: value => three(value) + " °C",
    mhz: value => three(value) + " MHz",
  };
  const element = (name, text, className) => {
    const made = document.createElement(name);
    if (text !== undefined) made.textContent = text;
    if (className) made.className = className;
    return made;
  };

  const place = (x, y) => {
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    const left = x + 16 + box.width > innerWidth ? Math.max(4, x - box.width - 16) : x + 16;
    const top = Math.min(Math.max(4, y - box.height / 2), innerHeight - box.height - 4);
    tip.style.left = left + "px";
    tip.style.top = top + "px";
  };
  const hide = () => { tip.hidden = true; };

  document.querySelectorAll(".plot").forEach(plot => {
    const block = plot.querySelector("script");
    if (!block) return;
    const data = JSON.parse(block.textContent);
    const rule = plot.appendChild(element("i", undefined, "rule"));
    let at = -1;
    const read = bin => {
      at = Math.max(0, Math.min(data.n - 1, bin));
      const share = (at + 0.5) / data.n;
      rule.style.left = 100 * share + "%";
      rule.hidden = false;
      tip.replaceChildren(element("b", show[data.xk](data.x0 + share * (data.x1 - data.x0))));
      data.s.forEach(line => {
        const value = line.v[at];
        if (value === null) return;
        const row = tip.appendChild(element("div"));
        row.append(element("i", undefined, "swatch k-" + line.k), line.n + " ", element("b", show[data.yk](value)));
        if (line.lo && line.hi[at] > line.lo[at])
          row.append(element("small", ` ${show[data.yk](line.lo[at])} to ${show[data.yk](line.hi[at])}`));
      });
      const box = plot.getBoundingClientRect();
      return box.left + share * box.width;
    };
    const leave = () => { rule.hidden = true; hide(); };
    rule.hidden = true;
    plot.addEventListener("pointermove", event => {
      const box = plot.getBoundingClientRect();
      place(read(Math.floor((event.clientX - box.left) / box.width * data.n)), event.clientY);
    });
    plot.addEventListener("pointerleave", leave);
    plot.addEventListener("blur", leave);
    plot.addEventListener("keydown", event => {
      const step = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -1e9, End: 1e9 }[event.key];
      if (event.key === "Escape") leave();
      if (step === undefined) return;
      event.preventDefault();
      place(read(at < 0 ? (step < 0 ? data.n - 1 : 0) : at + step), plot.getBoundingClientRect().top + 20);
    });
  });

  document.querySelectorAll(".lanes").forEach(lanes => {
    const axis = JSON.parse(lanes.lastElementChild.textContent);
    lanes.querySelectorAll(".lane").forEach(lane => {
      const data = JSON.parse(lane.querySelector("script").textContent);
      lane.addEventListener("pointermove", event => {
        const box = lane.getBoundingClientRect();
        const pixel = (event.clientX - box.left) / box.width * 1000;
        const found = data.p.find(piece => piece[0] <= pixel && pixel < piece[1]);
        if (!found) return hide();
        const time = share => show[axis.xk](axis.x0 + share / 1000 * (axis.x1 - axis.x0));
        tip.replaceChildren(element("b", axis.names[found[2]]), element("div", data.labels[found[4]] || ""),
          element("small", `${time(found[0])} to ${time(found[1])}` + (found[3] < 4 ? ", partly" : "")));
        place(event.clientX, event.clientY);
      });
      lane.addEventListener("pointerleave", hide);
    });
  });

  document.addEventListener("pointerover", event => {
    const target = event.target.closest && event.target.closest("[data-tip]");
    if (!target) return;
    tip.replaceChildren(element("div", target.dataset.tip));
    place(event.clientX, event.clientY);
    target.addEventListener("pointerleave", hide, { once: true });
  });
  addEventListener("scroll", hide, { passive: true });
  addEventListener("beforeprint", () => document.querySelectorAll("details").forEach(each => { each.open = true; }));
})();
