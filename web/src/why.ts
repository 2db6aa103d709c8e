// Why this weight: the equation with its numbers, for one query and one key.

import { CATEGORY, type Theme } from "./colour";
import { fill, h, number, svg } from "./dom";
import type { ScoreParts } from "./types";
import { name } from "./words";

/** A vector as bars, up for positive. */
export function bars(name: string, values: number[], colour: string, theme: Theme): HTMLElement {
  const top = Math.max(1e-9, ...values.map(Math.abs));
  const path = (sign: number, fill: string) =>
    svg("path", {
      fill,
      d: values.map((v, i) => (sign * v > 0 ? `M${i + 0.05},1v${(-v / top).toFixed(4)}h.9V1z` : "")).join(""),
    });
  const line = svg("path", {
    fill: theme === "dark" ? "#3a3f4c" : "#dfe2e8",
    d: `M0,.99h${values.length}v.02H0z`,
  });
  const said = `${name}: ${values.length} numbers from ${number(Math.min(...values))} to ${number(Math.max(...values))}`;
  const view = `0 0 ${values.length} 2`;
  const drawn = svg("svg", {
    class: "bars",
    role: "img",
    "aria-label": said,
    viewBox: view,
    preserveAspectRatio: "none",
  });
  drawn.append(line, path(1, colour), path(-1, CATEGORY[1]!));
  const note = h("span", { class: "quiet" }, "");
  drawn.addEventListener("pointermove", (event) => {
    const box = drawn.getBoundingClientRect();
    const at = Math.min(
      values.length - 1,
      Math.floor(((event.clientX - box.left) / box.width) * values.length),
    );
    note.textContent = `[${at}] ${number(values[at]!)}`;
  });
  drawn.addEventListener("pointerleave", () => (note.textContent = ""));
  return h("div", { class: "vector" }, h("span", { class: "vectorname" }, name), drawn, note);
}

export function showWhy(
  into: HTMLElement,
  parts: ScoreParts,
  names: { query: string; key: string },
  theme: Theme,
  gradient: HTMLElement | null,
): void {
  const sum = parts.products.reduce((a, b) => a + b, 0);
  const line = (left: string, right: string, value: string, strong = false) =>
    h(
      "tr",
      { class: strong ? "strong" : "" },
      h("td", {}, left),
      h("td", { class: "formula" }, right),
      h("td", { class: "num" }, value),
    );
  const rows: HTMLElement[] = [];
  const linear = parts.mechanism === "linear";
  if (parts.mechanism === "dense") rows.push(line("weight", "given as it is", number(parts.weight), true));
  else {
    rows.push(
      line(
        linear ? "Σ φ(q)·φ(k)" : parts.additive ? "Σ w·tanh(q + k)" : "Σ q·k",
        `sum of ${parts.products.length} products`,
        number(sum),
      ),
    );
    if (parts.scale !== null) rows.push(line("× scale", number(parts.scale), number(parts.similarity)));
    if (parts.softcap !== null)
      rows.push(
        line(
          "softcap",
          `${parts.softcap} · tanh(· / ${parts.softcap})`,
          number(parts.softcap * Math.tanh(parts.similarity / parts.softcap)),
        ),
      );
    if (parts.bias !== 0) rows.push(line("+ bias", "of the position", number(parts.bias)));
    if (!parts.visible) rows.push(line("masked", "this key is not visible to the query", "−∞"));
    else if (!linear) rows.push(line("score", "", parts.score === null ? "−∞" : number(parts.score)));
    if (linear) rows.push(line("÷ row sum", "Σ over all keys", parts.lse === null ? "0" : number(parts.lse)));
    else
      rows.push(
        line("− log-sum-exp", "log Σ exp(score) of the row", parts.lse === null ? "−∞" : number(parts.lse)),
      );
    rows.push(
      line(
        "weight",
        linear ? "product ÷ row sum" : "exp(score − log-sum-exp)",
        parts.visible ? number(parts.weight) : "0",
        true,
      ),
    );
  }
  fill(
    into,
    h(
      "p",
      { class: "pairname" },
      name(names.query, "query"),
      " looks at ",
      name(names.key, "key"),
      ` with ${number(parts.weight)}`,
    ),
    parts.q.length > 0 && bars(linear ? "φ(q)" : "q", parts.q, CATEGORY[0]!, theme),
    parts.k.length > 0 && bars(linear ? "φ(k)" : "k", parts.k, CATEGORY[0]!, theme),
    parts.products.length > 0 && bars(parts.additive ? "w·tanh" : "q·k", parts.products, CATEGORY[2]!, theme),
    h("table", { class: "sums", "data-weight": parts.weight, "data-sum": sum }, h("tbody", {}, rows)),
    parts.v && bars("v", parts.v, CATEGORY[6]!, theme),
    parts.v && h("p", { class: "quiet" }, "v is what the query receives, times the weight."),
    gradient,
  );
}
