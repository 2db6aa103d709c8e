// Facts of a head, predictions, and the writing of text step by step.

import { fill, h, number, option, percent } from "./dom";
import { MEASURES } from "./registry";
import type { HeadLabel, OneHead, Pair, Prediction, PredictionAnswer } from "./types";

/** How much of the text a label speaks of: a head may do something else with the rest. */
export const shareOf = ({ share }: HeadLabel): string =>
  share === null ? "on this text" : `${percent(share)} of its weight on this text`;

export function showFacts(
  into: HTMLElement,
  facts: OneHead | null,
  pairs: Pair[] | null,
  names: { rows: string[]; cols: string[] },
  valued: boolean,
  canValue: boolean,
  complete: boolean, // whether all heads are measured
  on: { value: (valued: boolean) => void; pair: (pair: Pair) => void },
): void {
  const label = facts?.label ?? null;
  const measures = Object.entries(facts?.measures ?? {}).flatMap(([name, { what, value, chance: level }]) => {
    if (value === null) return [];
    const counted = MEASURES[name]?.unit !== "share"; // not a share of 1: it has no bar
    const bar = h("span", { class: "bar1", "aria-hidden": "true" });
    bar.style.width = `${Math.min(100, 100 * (counted ? 0 : value))}%`;
    return [
      h(
        "tr",
        { title: what },
        h("th", { scope: "row" }, MEASURES[name]?.title ?? name),
        h("td", { class: "num" }, number(value)),
        h("td", { class: "barcell" }, !counted && bar),
        h("td", { class: "quiet num" }, level === null ? "" : number(level)),
      ),
    ];
  });
  fill(
    into,
    label
      ? h(
          "p",
          {},
          h("b", {}, label.label),
          h("span", { class: "quiet" }, ` (${shareOf(label)}) ${label.rule}`),
        )
      : h(
          "p",
          { class: "quiet" },
          facts && complete ? "No label: no rule names what this head does on this text." : "Measuring…",
        ),
    h(
      "p",
      { class: "caution", role: "note" },
      "Weights are not explanations. A large weight on a token whose value vector is short moves little. ",
      h(
        "button",
        {
          type: "button",
          class: "link",
          disabled: !canValue,
          title: canValue ? "" : "The value vectors of this trace were not kept.",
          onclick: () => on.value(!valued),
        },
        valued ? "Show the weights" : "Show weight × length of the value",
      ),
    ),
    measures.length > 0 &&
      h(
        "table",
        { class: "measures" },
        h(
          "thead",
          {},
          h(
            "tr",
            { class: "quiet" },
            h("th", { scope: "col" }, "measure"),
            h("th", { scope: "col" }, "here"),
            h("td", {}),
            h("th", { scope: "col", title: "of a head that looks at every visible key alike" }, "chance"),
          ),
        ),
        h("tbody", {}, measures),
      ),
    h("h3", {}, "Strongest pairs"),
    pairs === null
      ? h("p", { class: "quiet" }, "Looking…")
      : h(
          "ol",
          { class: "pairs" },
          pairs
            .slice(0, 6)
            .map((pair) =>
              h(
                "li",
                {},
                h(
                  "button",
                  { type: "button", class: "link", onclick: () => on.pair(pair) },
                  `${names.rows[pair.query] ?? pair.query} → ${names.cols[pair.key] ?? pair.key}`,
                ),
                h("span", { class: "num" }, number(pair.weight)),
              ),
            ),
        ),
  );
}

function bar(p: number, kind: string): HTMLElement {
  const element = h("span", { class: `pbar ${kind}`, "aria-hidden": "true" });
  element.style.width = `${Math.max(0, Math.min(100, 100 * p))}%`;
  return element;
}

function table(before: Prediction[], after: Prediction[] | null): HTMLElement {
  return h(
    "table",
    { class: "predictions" },
    h(
      "thead",
      {},
      h(
        "tr",
        {},
        h("td", {}),
        after ? h("th", { scope: "col" }, "all heads") : h("td", {}),
        after && h("th", { scope: "col" }, "heads off"),
      ),
    ),
    h(
      "tbody",
      {},
      before.map((each, i) => {
        const other = after?.[i];
        return h(
          "tr",
          {},
          h("th", { scope: "row", title: each.token }, each.token.trim() || "␣"),
          h("td", {}, h("span", { class: "num" }, number(each.p)), bar(each.p, "all")),
          other &&
            h(
              "td",
              { class: other.p > each.p ? "up" : "down" },
              h("span", { class: "num" }, number(other.p)),
              bar(other.p, "off"),
            ),
        );
      }),
    ),
  );
}

export function showPredictions(
  into: HTMLElement,
  answer: PredictionAnswer | null,
  why: string | null,
  tokens: string[],
  masked: number | null,
  on: { at: (position: number | null) => void },
): void {
  if (!answer) {
    fill(into, h("p", { class: "quiet" }, why ?? "Predicting…"));
    return;
  }
  const place =
    answer.kind === "vector"
      ? null
      : h(
          "label",
          { class: "inline" },
          answer.kind === "masked" ? "mask " : "after ",
          h(
            "select",
            { onchange: (event: Event) => on.at(Number((event.target as HTMLSelectElement).value)) },
            tokens.slice(-400).map((token, i) => {
              const at = Math.max(0, tokens.length - 400) + i;
              return option(String(at), `${at} ${token.trim() || "␣"}`, at === answer.position);
            }),
          ),
        );
  fill(
    into,
    place,
    answer.kind === "vector" &&
      h(
        "p",
        { class: "quiet" },
        "This encoder predicts no words. Its sentence vector's cosine with a few sentences:",
      ),
    answer.kind === "masked" &&
      h(
        "p",
        { class: "quiet" },
        masked === null
          ? "What the model writes in place of this token; click a token of the text view to mask another."
          : "What the model writes in place of the masked word.",
      ),
    table(answer.before, answer.after),
    answer.moved !== null &&
      h(
        "p",
        { class: "moved", "data-moved": answer.moved },
        `The sentence vector moved by ${number(answer.moved)} (1 − cosine).`,
      ),
  );
}
