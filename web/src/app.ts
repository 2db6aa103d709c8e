// The page as a whole: what is chosen, what is loaded, and the panels around the stage.

import type { Theme } from "./colour";
import { Comparison } from "./comparison";
import type { PageContext } from "./context";
import { fill, h, number, option, percent } from "./dom";
import { shareOf } from "./facts";
import { Finder } from "./finder";
import { Machine } from "./machine";
import { Overview, type Place } from "./overview";
import { NEEDS_MODEL, Panels } from "./panels";
import { Player } from "./player";
import { type AtlasView, type PageView, VIEWS } from "./registry";
import { type Drawing, Share } from "./share";
import { type EmbeddedDoc, EmbeddedTiles } from "./sources";
import { placeTip, Stage, sideTokens } from "./stage";
import { fromHash, START, type State, toHash } from "./state";
import { Story } from "./story";
import { TopBar } from "./topbar";
import { HEAD_NAMES, Tour } from "./tour";
import type { Act, Backend, Effects, HeadFacts, ModelChoice, Progress, Scene, TileSource } from "./types";
import { sameToken } from "./words";

export interface Config {
  docs: EmbeddedDoc[];
  start: Partial<State>;
  path: Scene[]; // a tour of somebody's own, instead of ours
  useHash: boolean; // what is looked at is written to the address
  framed: boolean; // a saved page inside another page, which says what it shows
  ownsKeys: boolean; // keys work wherever the focus is: nothing else is on this page
}

const LONG = 2048; // tokens of a text whose heads take a while to measure

/** What a scene does not name is as it is at the start. */
const PLAIN: Partial<State> = {
  view: "map",
  zoom: null,
  valued: false,
  compare: "none",
  more: [],
  chosen: [],
  sort: "layer",
  filter: "",
};

/** What decides a run of the model: a state with another key needs another trace. */
const runKey = ({ model, text, ref, target, off, cut, doc, write }: State): string =>
  JSON.stringify([model, text, text ? "" : ref, target, off, cut, doc, write]);

/** What makes a change a step of the browser's history: another view, model or text, not another cell. */
const STEPS = ["at", "view", "model", "text", "scene", "compare", "present"] as const;

export class App {
  readonly element = h("div", { class: "regard" });
  state: State;
  source: TileSource | null = null;
  facts: HeadFacts | null = null;
  private models: ModelChoice[] = [];
  private readonly messages = h("div", { class: "messages", role: "alert" });
  private readonly top: TopBar;
  private readonly overview: Overview;
  private readonly overview2: Overview; // of what it is compared with
  private readonly other = h("h2", {}, "B");
  private readonly stage: Stage;
  private readonly player: Player;
  private readonly headline = h("div", { class: "headline" });
  private readonly writing: HTMLDetailsElement;
  private readonly gridTools = h("div", { class: "tools" });
  private readonly legend = h("div", { class: "legend" });
  private loading = 0;
  private stopper = new AbortController();
  private asked = ""; // the run that is shown or under way
  private readonly panels: Panels;
  private readonly story: Story;
  private readonly machine: Machine;
  private readonly share: Share;
  private effects: { id: string; found: Effects | null } = { id: "", found: null };
  private readonly tour = new Tour({
    go: (scene) => this.goTo(scene),
    act: (act) => void this.act(act).catch((error: unknown) => this.failed(error)),
    hide: () => this.render(),
    openings: () => this.openings(),
  });
  private readonly atlas: HTMLElement;
  private readonly pointer = h("div", { class: "pointer", "aria-hidden": "true", hidden: true });
  private readonly leave = h(
    "button",
    { type: "button", class: "leave", onclick: () => this.change({ present: false }) },
    "End presentation (p)",
  );
  private readonly comparison: Comparison;
  private limit: number | null = null;
  private wrong = ""; // why something else is shown than was asked for
  private addressTimer: ReturnType<typeof setTimeout> | undefined;

  constructor(
    readonly config: Config,
    readonly backend: Backend | null,
  ) {
    this.state = { ...START, ...config.start, ...(config.useHash ? fromHash(location.hash) : {}) };
    const change = (patch: Partial<State>) => this.change(patch);
    const failed = (error: unknown) => this.failed(error);
    const context = this.context();
    this.panels = new Panels(context);
    this.story = new Story(context, (token) => this.guess(token));
    this.machine = new Machine(context);
    const finder = new Finder(context);
    this.share = new Share(context, () => this.drawing());
    this.comparison = new Comparison(context);
    this.top = new TopBar(context, {
      share: this.share.element,
      help: () => this.tour.open(),
      stop: () => this.stopper.abort(),
    });
    const zoomed = (zoom: State["zoom"]) => {
      this.state = { ...this.state, zoom };
      this.writeAddress();
    };
    this.stage = new Stage(
      { change, error: failed, zoomed },
      ({ source, ...at }) => this.overview.picture(source, at) ?? this.overview2.picture(source, at),
    );
    for (const { map } of this.stage.panels) map.catchesWheel = config.useHash;
    this.player = new Player(
      (row) => {
        this.limit = row === null ? null : row + 1;
        this.change(row === null ? {} : { query: row });
      },
      (count) => this.change({ write: count }),
    );
    this.overview = new Overview(
      (place, extra) => this.pickHead(place, extra),
      (place, at) => this.hoverHead(place, at),
      () => this.stage.waiting,
    );
    this.overview2 = new Overview(
      ({ layer, head }) => this.change({ layer2: layer, head2: head }),
      () => this.stage.tip.replaceChildren(),
      () => this.stage.waiting || this.overview.element.dataset["filled"] !== "all",
      "All heads of B, what it is compared with. Arrow keys move.",
    );
    const panel = (title: string, open: boolean, ...inside: HTMLElement[]) =>
      h("details", { class: "panel", open }, h("summary", {}, title), ...inside);
    this.writing = panel("Writing, step by step", false, this.player.element);
    this.atlas = h(
      "div",
      { class: "body" },
      h(
        "aside",
        { class: "side left", "aria-label": "All heads" },
        h("h2", {}, "All heads"),
        this.gridTools,
        this.overview.element,
        this.other,
        this.overview2.element,
        this.legend,
        panel("Predictions", true, h("div", { class: "inside" }, this.panels.offs), this.panels.predicting),
        this.writing,
        panel("Find the head that links ...", false, finder.element),
      ),
      h("main", { class: "main" }, this.headline, this.stage.controls, this.stage.element, this.stage.foot),
      h(
        "aside",
        { class: "side right", "aria-label": "This head" },
        panel("Why this weight", true, this.panels.why),
        panel("Facts of the head", true, this.panels.about),
      ),
    );
    fill(
      this.element,
      this.top.element,
      this.messages,
      this.story.element,
      this.machine.element,
      this.atlas,
      this.tour.element,
      this.tour.help,
      this.stage.tip,
      this.stage.announced,
      this.pointer,
      this.leave,
    );
    this.element.classList.toggle("framed", config.framed);
    this.listen();
  }

  /** What the parts of the page get to see of it. */
  private context(): PageContext {
    const app = this; // getters have a `this` of their own
    return {
      get state() {
        return app.state;
      },
      get source() {
        return app.source;
      },
      get facts() {
        return app.facts;
      },
      get theme() {
        return app.theme;
      },
      get models() {
        return app.models;
      },
      backend: this.backend,
      docs: this.config.docs,
      change: (patch) => this.change(patch),
      look: (patch) => this.look(patch),
      failed: (error) => this.failed(error),
      render: () => this.render(),
      drawn: () => this.drawn(),
    };
  }

  async start(): Promise<void> {
    if (this.backend) {
      this.backend.onConnection((alive) =>
        alive
          ? this.again()
          : this.say([
              "The server is gone. Start it again with `regard look`: this page reconnects by itself.",
            ]),
      );
      this.backend
        .models()
        .then((models) => {
          this.models = models;
          this.render();
        })
        .catch((error: unknown) => this.failed(error));
    }
    this.change({});
  }

  get theme(): Theme {
    if (this.state.theme) return this.state.theme;
    const notebook = document.body?.dataset["jpThemeLight"] ?? document.body?.dataset["theme"]; // Jupyter, marimo
    if (notebook === "false" || notebook === "dark") return "dark";
    if (notebook === "true" || notebook === "light") return "light";
    return matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  }

  /** The server is back, perhaps a new one: it takes the trace again. */
  private again(): void {
    this.say([]);
    this.asked = "";
    this.panels.renew();
    this.change({});
  }

  private say(lines: string[]): void {
    fill(
      this.messages,
      lines.map((line) => {
        const row = h(
          "div",
          { class: "message" },
          line,
          h("button", { type: "button", "aria-label": "close", onclick: () => row.remove() }, "×"),
        );
        return row;
      }),
    );
  }

  private failed(error: unknown): void {
    this.say([error instanceof Error ? error.message : String(error)]);
  }

  change(patch: Partial<State>, history: "step" | "same" = "step"): void {
    const moves = [
      "at",
      "layer",
      "head",
      "query",
      "key",
      "view",
      "model",
      "text",
      "compare",
      "sort",
      "filter",
    ];
    // A scene's caption is about its view: who goes elsewhere leaves it.
    if (!("scene" in patch) && moves.some((name) => name in patch)) patch = { ...patch, scene: null };
    if (patch.text !== undefined && patch.text !== this.state.text && !("cut" in patch))
      patch = { ...patch, cut: [], ref: "" }; // links are those of a text
    const before = this.state;
    this.state = { ...before, ...patch };
    const step =
      history === "step" && this.source !== null && STEPS.some((name) => before[name] !== this.state[name]);
    this.writeAddress(step);
    const key = runKey(this.state);
    if (key !== this.asked) {
      this.asked = key;
      void this.load();
    } else this.render();
  }

  /** A step can be gone back from. Other changes wait: browsers let an address change a few times a second. */
  private writeAddress(step = false): void {
    if (!this.config.useHash) return;
    clearTimeout(this.addressTimer);
    const address = () => `#${toHash(this.state)}`;
    if (step) history.pushState(null, "", address());
    else this.addressTimer = setTimeout(() => history.replaceState(null, "", address()), 200);
  }

  private get scenes(): Scene[] {
    return this.config.path.length ? this.config.path : (this.facts?.scenes ?? []);
  }

  /** Texts that show something, for a model that can read them. */
  private openings(): { title: string; open: () => void }[] {
    if (!this.backend || this.config.path.length || !this.source || this.source.meta.kind === "unknown")
      return [];
    return (this.facts?.openings ?? []).map(({ title, text }) => ({
      title,
      open: () =>
        this.look({
          ...PLAIN,
          at: "story",
          text,
          target: "",
          off: [],
          cut: [],
          write: 0,
          scene: null,
          query: null,
          key: null,
          suggest: [],
        }),
    }));
  }

  /** A click on a word answers the question that is open. */
  private guess(token: number): boolean {
    if (!this.tour.asking) return false;
    this.tour.answer(token);
    return true;
  }

  /** What a scene's button does. */
  private async act(act: Act): Promise<void> {
    const { source, backend, state } = this;
    if (!source || !backend) return;
    if (act.kind === "word") return this.story.change(act.from, act.to, state.scene);
    if (act.kind === "text") return this.look({ text: act.text, off: [], cut: [], scene: state.scene });
    const { values } = await backend.effects(source.meta);
    let best: [number, number, number] | null = null;
    values.forEach((row, layer) =>
      row.forEach((value, head) => {
        if (value !== null && (!best || value > best[2])) best = [layer, head, value];
      }),
    );
    if (!best || this.source !== source) return;
    const [layer, head] = best as [number, number, number];
    this.change({ off: [[layer, head]], scene: state.scene, at: "story" });
  }

  /** What a picture of the page is of; the map has one of its own. */
  private drawing(): Drawing {
    const { state, stage } = this;
    const view = state.view === "lines" ? stage.lines : stage.text;
    const root = { story: this.story, machine: this.machine, atlas: view }[state.at].element;
    return { root, links: (canvas) => stage.lines.vectors(canvas), panels: () => stage.figure() };
  }

  /** What each head does to the prediction, asked for once it is to be seen. */
  private effectsOf(source: TileSource): Effects | null {
    if (this.state.tint !== "effect" || !this.backend) return null;
    if (this.effects.id !== source.meta.id) {
      this.effects = { id: source.meta.id, found: null };
      this.backend
        .effects(source.meta)
        .then((found) => {
          if (this.effects.id === source.meta.id) this.effects.found = found;
          this.render();
        })
        .catch((error: unknown) => {
          this.failed(error);
          this.change({ tint: "weights" });
        });
    }
    return this.effects.found;
  }

  private goTo(scene: number | null, history: "step" | "same" = "step"): void {
    const wanted = scene === null ? {} : { ...PLAIN, ...this.scenes[scene]?.state };
    this.change({ ...wanted, scene }, history);
  }

  /** Look at a text, also at one that could not be looked at before. */
  private look(patch: Partial<State>): void {
    this.asked = "";
    this.change(patch);
  }

  private async load(): Promise<void> {
    const ticket = ++this.loading;
    const { model, text, ref, target, off, cut, doc, write } = this.state;
    this.stopper.abort(); // what was asked before is wanted no more
    this.stopper = new AbortController();
    this.top.busy({ done: 0, total: 0 });
    try {
      let source: TileSource;
      if (this.backend && (model || text || ref || !this.config.docs.length)) {
        const request = {
          model,
          text,
          ref: text ? "" : ref,
          target: target || null,
          off,
          cut,
          maxNew: write,
        };
        const told = (progress: Progress) => ticket === this.loading && this.top.busy(progress);
        source = await this.backend.trace(request, told, this.stopper.signal);
      } else {
        const found = this.config.docs[doc] ?? this.config.docs[0];
        if (!found) throw new Error("There is nothing to show: the page holds no trace.");
        source = new EmbeddedTiles(found);
      }
      if (ticket !== this.loading) return;
      this.adopt(source);
    } catch (error) {
      if (ticket === this.loading) this.recover(error);
    } finally {
      if (ticket === this.loading) this.top.busy(null);
    }
  }

  /** Say what went wrong. A page that has nothing to show yet shows the usual model instead of bare panels. */
  private recover(error: unknown): void {
    const { model, off, cut } = this.state;
    if (!this.source && this.backend && (model || off.length || cut.length)) {
      this.wrong = error instanceof Error ? error.message : String(error);
      this.change(
        { model: "", ref: "", off: [], cut: [], layer: 0, head: 0, query: null, key: null },
        "same",
      );
    } else this.failed(error);
  }

  adopt(source: TileSource): void {
    const before = this.source;
    this.source = source;
    this.facts = null;
    this.limit = null;
    this.stage.tip.replaceChildren();
    this.say([
      ...(this.wrong ? [`${this.wrong} Shown is ${source.meta.title}.`] : []),
      ...source.meta.notices,
    ]);
    this.wrong = "";
    const last = source.meta.layers.length - 1;
    const fresh: Partial<State> = { layer: Math.min(this.state.layer, last) };
    const layer = source.meta.layers[fresh.layer!]!;
    fresh.head = Math.min(this.state.head, layer.heads - 1);
    if ((this.state.query ?? 0) >= layer.queries || (this.state.key ?? 0) >= layer.keys)
      Object.assign(fresh, { query: null, key: null });
    if (before && before.meta.tokens.join("\u0000") !== source.meta.tokens.join("\u0000"))
      Object.assign(fresh, { zoom: null, chosen: [], ...this.sameWords(before, source, fresh.layer!) });
    if (!this.state.model) {
      Object.assign(fresh, { model: source.meta.modelKey, text: source.meta.text });
      this.asked = runKey({ ...this.state, ...fresh });
    }
    if (source.meta.generated) this.writing.open = true;
    this.element.classList.toggle("writes", source.meta.generated !== null);
    this.panels.renew();
    this.drawn()
      .then(() => this.measure(source))
      .catch((error: unknown) => this.failed(error));
    if (source.meta.ref && !this.state.text) fresh.ref = source.meta.ref;
    this.change(fresh, "same");
  }

  /** Of a long text first the head that is shown, then all of them. */
  private async measure(source: TileSource): Promise<void> {
    if (source.meta.tokens.length > LONG) {
      if (this.state.query === null) await this.chooseLink(source);
      this.panels.renewFacts();
      this.render();
      await this.overview.whenFilled();
    }
    const facts = await source.facts();
    if (this.source !== source) return;
    this.facts = facts;
    const { at, query, key } = this.state;
    if (at === "story" && query === null && this.scenes.length) return this.goTo(0, "same");
    if (at !== "atlas" && (query === null || key === null)) await this.chooseLink(source);
    this.render();
  }

  /** A link to show where none is chosen: that of the first scene, or the strongest of the head or the word. */
  private async chooseLink(source: TileSource): Promise<void> {
    const { layer, head, query } = this.state;
    const first = this.scenes[0]?.state;
    if (query === null && first)
      return this.change({ ...(first as Partial<State>), at: this.state.at }, "same");
    const pairs = query === null ? await source.pairs(layer, head) : [];
    const keys = source.meta.layers[layer]!.keys;
    const at = query ?? pairs[0]?.query ?? 0;
    const row = await source.tile({
      layer,
      head,
      r0: at,
      r1: at + 1,
      c0: 0,
      c1: keys,
      nRow: 1,
      nCol: keys,
      valued: false,
    });
    let best = 0;
    row.values.forEach((value, i) => {
      if (!(value <= row.values[best]!)) best = Number.isNaN(value) ? best : i;
    });
    if (this.source === source) this.change({ query: at, key: best }, "same");
  }

  /** The chosen words in another text: where a word is changed the others stay chosen. */
  private sameWords(from: TileSource, to: TileSource, layer: number): Partial<State> {
    const { query, key } = this.state;
    const gone = { query: null, key: null };
    if (query === null || !from.meta.layers[layer]) return gone;
    const find = (side: "rows" | "cols", index: number) => {
      const [was, is] = [sideTokens(from, layer, side), sideTokens(to, layer, side)];
      return was.length === is.length && was[index] === is[index] ? index : sameToken(was, index, is);
    };
    const row = find("rows", query);
    const col = key === null ? -1 : find("cols", key);
    return row < 0 ? gone : { query: row, key: col < 0 ? null : col };
  }

  /** Resolves once the map is drawn: what the eye waits for comes before measures and predictions. */
  private async drawn(): Promise<void> {
    do await new Promise((resolve) => setTimeout(resolve, 30));
    while (this.stage.waiting);
  }

  private pickHead(place: Place, extra: boolean): void {
    if (extra) {
      if (this.state.view === "lines") {
        const has = this.state.more.some(([l, x]) => l === place.layer && x === place.head);
        this.change({
          more: has
            ? this.state.more.filter(([l, x]) => l !== place.layer || x !== place.head)
            : [...this.state.more, [place.layer, place.head]],
        });
      } else
        this.change({
          compare: this.state.compare === "none" ? "head" : this.state.compare,
          layer2: place.layer,
          head2: place.head,
        });
      return;
    }
    this.change({
      layer: place.layer,
      head: place.head,
      ...(this.state.compare !== "none" && this.state.compare !== "head"
        ? { layer2: place.layer, head2: place.head }
        : {}),
    });
  }

  private hoverHead(place: Place | null, at: HTMLElement): void {
    const tip = this.stage.tip;
    if (!place || !this.source) return tip.replaceChildren();
    const label = this.facts?.labels[place.layer]?.[place.head];
    const value = this.facts?.measures[this.state.sort]?.values[place.layer]?.[place.head];
    fill(
      tip,
      h("div", {}, h("b", {}, `layer ${place.layer} · head ${place.head}`)),
      h("div", {}, this.source.meta.layers[place.layer]!.name),
      label && h("div", {}, label.label),
      value !== undefined && value !== null && h("div", {}, `${this.state.sort} ${number(value)}`),
      this.state.tint === "effect" &&
        typeof this.effects.found?.values[place.layer]?.[place.head] === "number" &&
        h("div", {}, `effect ${number(this.effects.found.values[place.layer]![place.head]!)}`),
    );
    const box = at.getBoundingClientRect();
    placeTip(tip, box.right + 10, box.top);
    return undefined;
  }

  render(): void {
    const { source, state } = this;
    this.element.dataset["theme"] = this.theme;
    this.element.dataset["at"] = state.at;
    this.element.classList.toggle("presenting", state.present);
    this.pointer.hidden = !state.present;
    if (state.at !== "atlas") this.stage.tip.replaceChildren(); // it is of the map
    this.top.render();
    this.story.element.hidden = state.at !== "story";
    this.machine.element.hidden = state.at !== "machine";
    this.atlas.hidden = state.at !== "atlas";
    this.element.classList.toggle("comparing", state.compare !== "none" && state.view === "map");
    if (!source) return;
    this.tour.show(this.scenes, state.scene, source.meta.id);
    const scene = state.scene === null ? null : this.scenes[state.scene];
    const asking = this.tour.asking !== null;
    this.element.classList.toggle("asking", asking);
    this.story.stage(asking, asking ? null : (scene?.points ?? null));
    if (state.at === "story") return void this.story.show(source);
    if (state.at === "machine") return void this.machine.show(source);
    const layer = source.meta.layers[state.layer]!;
    const at = { layer: state.layer, head: state.head };
    const b = this.comparison.shown();
    this.stage.show(
      state,
      this.theme,
      { source, ...at, title: this.comparison.titled(source, at) },
      b,
      this.comparison.controls(),
      this.limit,
    );
    this.overview.show({
      source,
      facts: this.facts,
      chosen: at,
      second: state.compare === "head" ? { layer: state.layer2, head: state.head2 } : null,
      more: state.view === "lines" ? state.more : [],
      off: state.off,
      sort: state.sort,
      filter: state.filter,
      theme: this.theme,
      effects: this.effectsOf(source),
      scale: state.thumbs,
    });
    const apart = b !== null && b.source !== source; // another run: it has heads of its own
    this.other.hidden = this.overview2.element.hidden = !apart;
    if (b && apart) {
      this.other.textContent = `B: ${b.source.meta.title}`;
      this.overview2.show({
        source: b.source,
        facts: null,
        chosen: b,
        second: null,
        more: [],
        off: b.source.meta.off,
        sort: "layer",
        filter: "",
        theme: this.theme,
        effects: null,
        scale: state.thumbs,
      });
    }
    const label = this.facts?.labels[at.layer]?.[at.head];
    const chip = label
      ? h(
          "span",
          { class: "chip", title: `${HEAD_NAMES[label.label] ?? ""} ${shareOf(label)}. ${label.rule}` },
          h("i"),
          `${label.label}${label.share === null ? "" : ` ${percent(label.share)}`}`,
        )
      : null;
    chip?.style.setProperty("--label", this.overview.colourOf(label!.label));
    fill(
      this.headline,
      this.picker(source),
      chip,
      h(
        "span",
        { class: "quiet" },
        `${layer.name} · ${layer.mechanism}${layer.kind === "cross" ? " · cross-attention" : ""} · ${layer.queries} × ${layer.keys} · ${source.meta.title}`,
      ),
    );
    this.drawGridTools();
    this.panels.render(source);
    this.player.show(source, this.backend ? null : NEEDS_MODEL, state.query);
  }

  /** Layer and head where the map is, whatever else of the page is in sight. */
  private picker(source: TileSource): HTMLElement {
    const { layer, head } = this.state;
    const pick = (name: string, count: number, chosen: number, choose: (value: number) => void) =>
      h(
        "select",
        {
          "aria-label": name,
          onchange: (event: Event) => choose(Number((event.target as HTMLSelectElement).value)),
        },
        Array.from({ length: count }, (_, i) => option(String(i), `${name} ${i}`, i === chosen)),
      );
    const heads = source.meta.layers.map((one) => one.heads);
    const step = (by: number) => {
      const all = heads.flatMap((count, l) =>
        Array.from({ length: count }, (_, x) => ({ layer: l, head: x })),
      );
      const now = all.findIndex((place) => place.layer === layer && place.head === head);
      this.pickHead(all[(now + by + all.length) % all.length]!, false);
    };
    const button = (name: string, sign: string, by: number) =>
      h("button", { type: "button", "aria-label": name, onclick: () => step(by) }, sign);
    return h(
      "span",
      { class: "picker" },
      button("previous head", "‹", -1),
      pick("Layer", heads.length, layer, (value) =>
        this.pickHead({ layer: value, head: Math.min(head, heads[value]! - 1) }, false),
      ),
      pick("head", heads[layer]!, head, (value) => this.pickHead({ layer, head: value }, false)),
      button("next head", "›", 1),
    );
  }

  private drawGridTools(): void {
    const { facts, state } = this;
    const measures = Object.keys(facts?.measures ?? {});
    const labels = [
      ...new Set(
        (facts?.labels ?? [])
          .flat()
          .filter((l) => l !== null)
          .map((l) => l.label),
      ),
    ].sort();
    fill(
      this.gridTools,
      h(
        "select",
        {
          "aria-label": "order of the heads",
          onchange: (event: Event) => this.change({ sort: (event.target as HTMLSelectElement).value }),
        },
        option("layer", "by layer", state.sort === "layer"),
        measures.map((m) => option(m, `by ${m}`, m === state.sort)),
      ),
      h(
        "select",
        {
          "aria-label": "label",
          disabled: !labels.length,
          onchange: (event: Event) => this.change({ filter: (event.target as HTMLSelectElement).value }),
        },
        option("", "all labels", state.filter === ""),
        labels.map((l) => option(l, l, l === state.filter)),
      ),
      h(
        "select",
        {
          "aria-label": "colour of the heads",
          title: this.backend ? "" : NEEDS_MODEL,
          onchange: (event: Event) =>
            this.change({ tint: (event.target as HTMLSelectElement).value as State["tint"] }),
        },
        option("weights", "show weights", state.tint === "weights"),
        option("effect", "show effect on the prediction", state.tint === "effect", !this.backend),
      ),
      h(
        "label",
        { class: "inline" },
        h("input", {
          type: "checkbox",
          checked: state.thumbs === "own",
          onchange: (event: Event) =>
            this.change({ thumbs: (event.target as HTMLInputElement).checked ? "own" : "one" }),
        }),
        "a scale for each picture",
      ),
    );
    fill(
      this.legend,
      labels.map((name) => {
        const mark = h("i");
        mark.style.setProperty("--label", this.overview.colourOf(name));
        return h(
          "button",
          {
            type: "button",
            "aria-pressed": String(name === state.filter),
            onclick: () => this.change({ filter: state.filter === name ? "" : name }),
          },
          mark,
          name,
        );
      }),
      h(
        "span",
        {},
        state.tint === "effect"
          ? (this.effects.found?.what ?? "Switching heads off…") +
              ": orange: helps this word; blue: works against it."
          : `Small pictures: the ${this.theme === "dark" ? "brighter" : "darker"}, the larger the weight, ${state.thumbs === "one" ? "on one scale for all heads" : "each on a scale of its own"} (square root). Shift-click compares.`,
      ),
    );
  }

  private listen(): void {
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.render());
    if (this.config.useHash)
      addEventListener("hashchange", () => {
        if (location.hash.slice(1) !== toHash(this.state))
          this.change({ ...START, ...fromHash(location.hash) }, "same");
      });
    // The page's own keys work wherever the focus is; in a notebook only inside its cell.
    const keys: GlobalEventHandlers = this.config.ownsKeys ? document.documentElement : this.element;
    keys.addEventListener("keydown", (event) => this.key(event));
    this.element.addEventListener("pointermove", (event) => {
      if (!this.state.present) return;
      const box = this.element.getBoundingClientRect();
      this.pointer.style.translate = `${event.clientX - box.left}px ${event.clientY - box.top}px`;
    });
    // A panel that is open over the page closes as a menu does.
    this.element.addEventListener("pointerdown", (event) => {
      if (!event.composedPath().includes(this.share.element)) this.share.close();
    });
    this.element.addEventListener("dragover", (event) => {
      event.preventDefault();
      this.element.classList.add("drop");
    });
    this.element.addEventListener("dragleave", () => this.element.classList.remove("drop"));
    this.element.addEventListener("drop", (event) => {
      event.preventDefault();
      this.element.classList.remove("drop");
      const file = event.dataTransfer?.files[0];
      if (file) void this.open(file);
    });
  }

  private key(event: KeyboardEvent): void {
    const from = event.composedPath()[0] as HTMLElement;
    const { state } = this;
    if (event.key === "Escape") {
      if (this.share.element.open) this.share.close();
      else if (state.present && !this.tour.help.open) this.change({ present: false });
      return;
    }
    const typing =
      /^(INPUT|TEXTAREA|SELECT)$/.test(from.tagName) && (from as HTMLInputElement).type !== "checkbox";
    if (typing || event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
    if (this.tour.help.open) return;
    // A clicker sends PageDown and PageUp; Space presses a button that has the focus.
    const pressing = /^(BUTTON|SUMMARY)$/.test(from.tagName);
    const clicks: Record<string, number> = { PageDown: 1, PageUp: -1, ...(pressing ? {} : { " ": 1 }) };
    const arrows: Record<string, number> = { ArrowLeft: -1, ArrowRight: 1 };
    const step = clicks[event.key] ?? (state.scene === null ? undefined : arrows[event.key]);
    if (step !== undefined && this.scenes.length) {
      event.preventDefault();
      const to = state.scene === null ? (step > 0 ? 0 : -1) : state.scene + step;
      if (this.tour.reveal(step)) return;
      if (this.scenes[to]) this.goTo(to);
      return;
    }
    const wanted = Object.entries(VIEWS).find(([, { key }]) => key === event.key);
    if (wanted?.[1].level === "page") return this.change({ at: wanted[0] as PageView, scene: null });
    if (event.key === "?") return this.tour.open();
    if (event.key === "p") return this.present();
    if (state.at !== "atlas") return;
    if (wanted) this.change({ view: wanted[0] as AtlasView });
    else if (event.key === "x") this.panels.offs.querySelector<HTMLButtonElement>(".switch")?.click();
    else if (event.key.startsWith("Arrow")) this.overview.key(event); // of the grid, wherever the focus is
  }

  /** One thing, as large as the screen. A browser may refuse to fill the screen: the window is filled then. */
  private present(): void {
    const present = !this.state.present;
    this.change({ present });
    if (!this.config.useHash) return;
    if (present) this.element.requestFullscreen?.().catch(() => undefined);
    else if (document.fullscreenElement) void document.exitFullscreen();
  }

  async open(file: File): Promise<void> {
    if (!this.backend) return this.failed(new Error(NEEDS_MODEL));
    this.top.busy({ done: 0, total: 0 });
    try {
      const source = await this.backend.open(file.name, await file.arrayBuffer());
      this.state = { ...this.state, model: source.meta.modelKey, text: source.meta.text, off: [], write: 0 };
      this.asked = runKey(this.state);
      this.adopt(source);
    } catch (error) {
      this.failed(error);
    } finally {
      this.top.busy(null);
    }
  }
}
