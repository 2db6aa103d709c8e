// The machine: how one weight comes about, step by step, every number the model's own until you overwrite one.

import { codeOf } from "./code";
import { CATEGORY } from "./colour";
import type { PageContext } from "./context";
import { fill, h, number, percent } from "./dom";
import { sideTokens } from "./stage";
import type { MachineRow, Push, TileSource } from "./types";
import { bars, showWhy } from "./why";
import { label, labels, linkNames, name } from "./words";

const NOTHING_KEPT =
  "This page has no model and kept nothing more of this layer: the machine begins at the query and the key.";
const PACE = 1600; // milliseconds a step

/** Weights of a row: softmax of score / temperature over what is visible; `rest` stands for keys left out. */
export function softmaxRow(
  row: MachineRow,
  scores: number[],
  visible: boolean[],
  temperature: number,
): number[] {
  const hot = scores.map((score, i) => (visible[i] ? score / temperature : -Infinity));
  // The rest of a long row is one number at temperature 1; at another it cannot be known and is left out.
  const all = row.rest === null || temperature !== 1 ? hot : [...hot, row.rest];
  const top = Math.max(...all);
  if (top === -Infinity) return hot.map(() => 0);
  const sum = all.reduce((a, score) => a + Math.exp(score - top), 0);
  return hot.map((score) => Math.exp(score - top) / sum);
}

type Needs = Pick<PageContext, "state" | "source" | "theme" | "change" | "failed">;

export class Machine {
  readonly element = h("main", { class: "machine", "aria-label": "Machine" });
  private readonly heading = h("p", { class: "finding" });
  private readonly steps = h("ol", { class: "cards" });
  private readonly slider = h("input", { type: "range", min: "1", "aria-label": "step of the computation" });
  private readonly playing = h("button", { type: "button" });
  private readonly changed = h("p", { class: "caution", role: "status" });
  private readonly heat = h("input", {
    type: "range",
    min: "-2",
    max: "2",
    step: "0.1",
    "aria-label": "temperature",
  });
  private readonly heatSaid = h("span", { class: "num" });
  private readonly code = h("pre", {});
  private timer: ReturnType<typeof setInterval> | null = null;
  private step = 99; // all of it, until somebody goes through it
  private count = 0;
  private asked = "";
  private row: MachineRow | null = null;
  private scores: number[] = [];
  private visible: boolean[] = [];

  constructor(private readonly page: Needs) {
    this.slider.addEventListener("input", () => {
      const wanted = Number(this.slider.value);
      this.pause();
      this.go(wanted);
    });
    this.playing.addEventListener("click", () => (this.timer ? this.pause() : this.play()));
    this.heat.addEventListener("input", () => this.draw());
    fill(
      this.element,
      this.heading,
      h(
        "div",
        { class: "player scrub tool" },
        this.playing,
        this.slider,
        h("label", { class: "inline" }, "temperature", this.heat, this.heatSaid),
        h("button", { type: "button", onclick: () => this.reset() }, "Reset to the model's numbers"),
      ),
      this.changed,
      this.steps,
      h(
        "details",
        { class: "panel code" },
        h("summary", {}, "in code"),
        h("div", { class: "inside" }, this.code),
      ),
    );
    this.go(this.step);
  }

  private get temperature(): number {
    return 2 ** Number(this.heat.value);
  }

  private play(): void {
    if (this.step >= this.count) this.step = 0;
    this.timer = setInterval(() => {
      if (this.step >= this.count) this.pause();
      else this.go(this.step + 1);
    }, PACE);
    this.go(this.step + 1);
  }

  private pause(): void {
    if (this.timer) clearInterval(this.timer);
    this.timer = null;
    this.go(this.step);
  }

  private go(step: number): void {
    this.step = step;
    this.slider.value = String(Math.min(step, this.count));
    this.playing.textContent = this.timer ? "❚❚" : "▶";
    this.playing.setAttribute("aria-label", this.timer ? "pause" : "play");
    [...this.steps.children].forEach((card, i) => {
      card.classList.toggle("later", i >= this.step);
      card.classList.toggle("now", i === this.step - 1);
    });
    if (this.timer) this.steps.children[this.step - 1]?.scrollIntoView({ block: "nearest" });
  }

  private reset(): void {
    if (!this.row) return;
    this.heat.value = "0";
    this.scores = [...this.row.scores];
    this.visible = [...this.row.visible];
    this.draw();
  }

  show(source: TileSource): void {
    const { layer, head, query, key } = this.page.state;
    if (query === null || key === null) {
      this.asked = "";
      this.row = null;
      fill(this.heading, "Choose a link first: a word in Story, or a cell of the map in Atlas.");
      fill(this.steps);
      this.changed.hidden = true;
      return;
    }
    const asked = JSON.stringify([source.meta.id, layer, head, query, key, this.page.theme]);
    if (asked === this.asked) return;
    this.asked = asked;
    this.row = null;
    fill(this.heading, "Taking the number apart…");
    fill(this.steps);
    this.changed.hidden = true;
    source
      .machine(layer, head, query, key)
      .then((row) => {
        if (asked !== this.asked) return;
        this.row = row;
        this.reset();
      })
      .catch((error: unknown) => this.page.failed(error));
  }

  private draw(): void {
    const { row, page } = this;
    const { layer, head, query, key } = page.state;
    if (!row || query === null || key === null) return;
    const source = page.source!;
    const meta = source.meta.layers[layer]!;
    const [rows, cols] = [sideTokens(source, layer, "rows"), sideTokens(source, layer, "cols")];
    const colNames = labels(cols);
    const names = linkNames(rows, cols, query, key);
    const [q, k] = [`“${names.query}”`, `“${names.key}”`];
    const { parts, model } = row;
    fill(
      this.heading,
      "Where does ",
      h("b", {}, percent(row.parts.visible ? row.parts.weight : 0)),
      " come from? Head ",
      `${layer}.${head}, `,
      name(names.query, "query"),
      " looking at ",
      name(names.key, "key"),
    );
    if (!row.keys.length) {
      this.count = 1;
      const inside = h("div", {});
      showWhy(inside, parts, names, page.theme, null);
      fill(
        this.steps,
        h(
          "li",
          { class: "card" },
          h("p", {}, "This layer has no softmax over scores: these are all its numbers."),
          inside,
        ),
      );
      this.changed.hidden = true;
      this.code.textContent = "";
      return;
    }
    const own = softmaxRow(row, row.scores, row.visible, 1);
    const weights = softmaxRow(row, this.scores, this.visible, this.temperature);
    const hasMore = meta.keys > row.keys.length;
    const sink = meta.sink && row.rest !== null;
    const rest = (shown: number[]) =>
      row.rest === null ? 0 : Math.max(0, 1 - shown.reduce((a, b) => a + b, 0));
    const [left, restOwn] = [rest(weights), rest(own)];
    const scale1 = restOwn > 0 ? left / restOwn : 0; // by how much the rest of a long row has changed
    const edited =
      this.temperature !== 1 ||
      this.scores.some((s, i) => s !== row.scores[i]) ||
      this.visible.some((v, i) => v !== row.visible[i]);
    this.changed.hidden = !edited;
    this.changed.textContent = "You changed a number: what follows it is no longer the model's.";
    this.heatSaid.textContent = number(this.temperature);
    const at = row.keys.indexOf(key);
    const keyName = (i: number) => colNames[row.keys[i]!]!;
    const vector = (title: string, values: number[], colour = CATEGORY[0]!) =>
      bars(title, values, colour, page.theme);
    const sum = parts.products.reduce((a, b) => a + b, 0);
    const same = (a: number[], b: number[]) =>
      a.every((x, i) => Math.abs(x - b[i]!) < 1e-4 * (1 + Math.abs(x)));
    const cards: [string, string, (HTMLElement | string | null)[]][] = [];
    if (model) {
      cards.push([
        "x",
        `What ${q} and ${k} had become by layer ${layer}: ${model.x.length} numbers each.`,
        [vector("x", model.x), vector("x ′", model.xKey)],
      ]);
      cards.push([
        "q = x W_q",
        `Each head asks with its own ${model.q.length} numbers: the query of ${q}, and the key of ${k} it is compared with.`,
        [vector("q", model.q), vector("k", model.k)],
      ]);
      if (!same(model.q, parts.q) || !same(model.k, parts.k))
        cards.push([
          "positions",
          `Both are rotated by their position, ${q} by ${query} steps and ${k} by ${key}, so that distance matters.`,
          [vector("q", parts.q), vector("k", parts.k)],
        ]);
    } else cards.push(["q, k", row.without ?? NOTHING_KEPT, [vector("q", parts.q), vector("k", parts.k)]]);
    cards.push([
      "score",
      parts.additive
        ? `Each pair of numbers gives w·tanh(q + k); together ${number(sum)}.`
        : `Multiply number by number and add the ${parts.products.length} products: ${number(sum)}. Times ${number(parts.scale ?? 1)}${parts.softcap === null ? "" : `, softly capped at ${parts.softcap}`}${parts.bias ? `, plus ${number(parts.bias)} for the distance` : ""}, that is the score.`,
      [
        vector(parts.additive ? "w·tanh" : "q·k", parts.products, CATEGORY[2]!),
        this.scoreField(at, colNames[key]!),
      ],
    ]);
    cards.push([
      "the whole row",
      `${q} scores every key it may see${hasMore ? `; the ${row.keys.length} largest are shown` : ""}. Click a bar to mask that key, or to show it again.`,
      [this.chart(this.scores, (i) => this.visible[i]!, keyName, at, "score")],
    ]);
    cards.push([
      "softmax",
      `exp of each score, divided by the sum of all: ${percent(weights[at]!)} for ${k}. ${sink ? `The learned sink takes ${percent(left)}; with it the row sums to 1.` : "The row sums to 1."}`,
      [this.chart(weights, (i) => this.visible[i]!, keyName, at, "weight")],
    ]);
    if (row.values) {
      // The keys left out keep their weights among themselves: together they scale with the rest of the row.
      const others = row.restValue;
      const mix = row.values[0]!.map(
        (_, d) =>
          row.values!.reduce((a, v, i) => a + weights[i]! * v[d]!, 0) + (others ? scale1 * others[d]! : 0),
      );
      const all = !hasMore || others;
      cards.push([
        "values add up",
        `${percent(weights[at]!)} of what ${k} gives, and so on for each key${hasMore ? (all ? `, also for the ${meta.keys - row.keys.length} not shown` : " shown") : ""}: ${all ? "the head's answer" : "a part of the head's answer"}.`,
        [vector("v", row.values[at]!, CATEGORY[6]!), vector("Σ w v", mix, CATEGORY[6]!)],
      ]);
    }
    if (model?.push)
      cards.push([
        "W_o, and the next token",
        `W_o writes the answer back to the text; this is what it adds to the scores of next tokens${hasMore && !model.push.rest ? ", from the keys shown" : ""}.`,
        [this.pushes(model.push, weights, own, hasMore ? scale1 : 0)],
      ]);
    else if (model?.added !== undefined)
      cards.push([
        "W_o",
        `W_o writes the answer back: a vector of length ${number(model.added)} beside x of length ${number(model.length!)}. This model predicts no next token from here.`,
        [],
      ]);
    else if (model && row.without) cards.push(["W_o", row.without, []]);
    this.count = cards.length;
    this.slider.max = String(this.count);
    fill(
      this.steps,
      cards.map(([title, says, inside], i) =>
        h(
          "li",
          { class: "card", "data-step": title },
          h("h2", {}, `${i + 1}  ${title}`),
          h("p", {}, says),
          inside,
        ),
      ),
    );
    this.steps.dataset["weight"] = String(weights[at]!);
    this.go(Math.min(this.step, this.count));
    this.code.textContent = codeOf(meta, parts, model?.x.length ?? null, { head, query, key }).join("\n");
  }

  private scoreField(at: number, name: string): HTMLElement {
    const field = h("input", {
      type: "number",
      step: "0.1",
      value: String(+this.scores[at]!.toFixed(4)),
      "aria-label": `score of ${name}`,
      onchange: () => {
        if (!Number.isFinite(Number(field.value)) || field.value === "") return this.draw();
        this.scores[at] = Number(field.value);
        return this.draw();
      },
    });
    return h("label", { class: "inline scorefield" }, `score of ${name}`, field);
  }

  /** A row as bars with names; long rows show the largest. */
  private chart(
    values: number[],
    seen: (i: number) => boolean,
    name: (i: number) => string,
    at: number,
    what: string,
  ): HTMLElement {
    const order = values
      .map((_, i) => i)
      .sort((a, b) => values[b]! - values[a]!)
      .slice(0, 23);
    const shown = [...new Set([...order, at])].sort((a, b) => a - b);
    const low = Math.min(0, ...shown.map((i) => values[i]!));
    const top = Math.max(
      what === "weight" ? 1e-9 : 0,
      ...shown.map((i) => (seen(i) || what === "score" ? values[i]! : 0)),
    );
    const span = top - low || 1;
    const zero = (100 * -low) / span; // where nothing is, in percent from below
    const all = shown.map((i) => {
      const bar = h("span", { class: "upright", "aria-hidden": "true" });
      const size = seen(i) ? values[i]! : what === "weight" ? 0 : values[i]!;
      const tall = (100 * Math.abs(size)) / span;
      bar.style.height = `${tall}%`;
      bar.style.bottom = `${size < 0 ? zero - tall : zero}%`;
      const line = h("span", { class: "zeroline", "aria-hidden": "true" });
      line.style.bottom = `${zero}%`;
      const said = seen(i) ? number(values[i]!) : "masked";
      const toggle = () => {
        this.visible[i] = !this.visible[i];
        this.draw();
      };
      return h(
        "button",
        {
          type: "button",
          class: `column1${i === at ? " key" : ""}${seen(i) ? "" : " hidden1"}`,
          "aria-label": `${name(i)}: ${what} ${said}`,
          "aria-pressed": String(!seen(i)),
          "data-key": this.row!.keys[i],
          title: `${name(i)}: ${said}`,
          onclick: toggle,
        },
        h("span", { class: "room" }, bar, line),
        h("span", { class: "value num" }, said),
        h("span", { class: "name" }, name(i)),
      );
    });
    return h(
      "div",
      { class: shown.length > 11 ? "chart crowded" : "chart" },
      all,
      shown.length < values.length &&
        h("span", { class: "quiet" }, `and ${values.length - shown.length} smaller`),
    );
  }

  private pushes(push: Push, weights: number[], own: number[], scale: number): HTMLElement {
    const rest = (t: number, by: number) => by * (push.rest?.[t] ?? 0);
    const total = (w: number[], t: number) => push.byKey.reduce((a, by, i) => a + w[i]! * by[t]!, 0);
    const rows = push.tokens.map((token, t) => {
      const [now, was] = [total(weights, t) + rest(t, scale), total(own, t) + rest(t, scale ? 1 : 0)];
      return h(
        "tr",
        {},
        h("th", { scope: "row" }, label(token)),
        h("td", { class: `num ${now >= 0 ? "up" : "down"}` }, number(now)),
        h("td", { class: "num quiet" }, Math.abs(now - was) > 5e-4 ? `was ${number(was)}` : ""),
      );
    });
    return h("table", { class: "pushes" }, h("tbody", {}, rows));
  }
}
