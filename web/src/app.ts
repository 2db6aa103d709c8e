// The page as a whole: what is chosen, what is loaded, and the panels around the stage.

import type { Theme } from "./colour";
import { Comparison } from "./comparison";
import type { PageContext } from "./context";
import { fill, h, number, option } from "./dom";
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
import type { Backend, Effects, HeadFacts, ModelChoice, Progress, Scene, TileSource } from "./types";
import { sameToken } from "./words";

export interface Config {
  docs: EmbeddedDoc[];
  start: Partial<State>;
  path: Scene[]; // a tour of somebody's own, instead of ours
  useHash: boolean;
}

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
const runKey = ({ model, text, target, off, doc, write }: State): string =>
  JSON.stringify([model, text, target, off, doc, write]);

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
  private readonly tour = new Tour((scene) => this.goTo(scene));
  private readonly atlas: HTMLElement;
  private readonly comparison: Comparison;
  private limit: number | null = null;
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
    this.story = new Story(context);
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
        panel("Which head does it?", false, finder.element),
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
    );
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

  change(patch: Partial<State>): void {
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
    this.state = { ...this.state, ...patch };
    this.writeAddress();
    const key = runKey(this.state);
    if (key !== this.asked) {
      this.asked = key;
      void this.load();
    } else this.render();
  }

  /** Not at every frame: browsers let an address change a few times a second only. */
  private writeAddress(): void {
    if (!this.config.useHash) return;
    clearTimeout(this.addressTimer);
    this.addressTimer = setTimeout(() => history.replaceState(null, "", `#${toHash(this.state)}`), 200);
  }

  private get scenes(): Scene[] {
    return this.config.path.length ? this.config.path : (this.facts?.scenes ?? []);
  }

  /** What a picture of the page is of; the map has one of its own. */
  private drawing(): Drawing {
    const { state, stage } = this;
    const view = state.view === "lines" ? stage.lines : stage.text;
    const root = { story: this.story, machine: this.machine, atlas: view }[state.at].element;
    return { root, links: (canvas) => stage.lines.vectors(canvas) };
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

  private goTo(scene: number | null): void {
    const wanted = scene === null ? {} : { ...PLAIN, ...this.scenes[scene]?.state };
    this.change({ ...wanted, scene });
  }

  /** Look at a text, also at one that could not be looked at before. */
  private look(patch: Partial<State>): void {
    this.asked = "";
    this.change(patch);
  }

  private async load(): Promise<void> {
    const ticket = ++this.loading;
    const { model, text, target, off, doc, write } = this.state;
    this.stopper.abort(); // what was asked before is wanted no more
    this.stopper = new AbortController();
    this.top.busy({ done: 0, total: 0 });
    try {
      let source: TileSource;
      if (this.backend && (model || text || !this.config.docs.length)) {
        const request = { model, text, target: target || null, off, maxNew: write };
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
      if (ticket === this.loading) this.failed(error);
    } finally {
      if (ticket === this.loading) this.top.busy(null);
    }
  }

  adopt(source: TileSource): void {
    const before = this.source;
    this.source = source;
    this.facts = null;
    this.limit = null;
    this.stage.tip.replaceChildren();
    this.say(source.meta.notices);
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
    // Measuring a long text takes as long as all small pictures together: those come first.
    const long = source.meta.tokens.length > 2048;
    this.drawn()
      .then(() => (long ? this.overview.whenFilled() : null))
      .then(() => source.facts())
      .then((facts) => {
        if (this.source !== source) return;
        this.facts = facts;
        const opens = this.state.at === "story" && this.state.query === null;
        if (opens && this.scenes.length) this.goTo(0);
        else this.change(opens ? { at: "atlas" } : {}); // a long text has no story
      })
      .catch((error: unknown) => this.failed(error));
    this.change(fresh);
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
    this.top.render();
    this.story.element.hidden = state.at !== "story";
    this.machine.element.hidden = state.at !== "machine";
    this.atlas.hidden = state.at !== "atlas";
    this.element.classList.toggle("comparing", state.compare !== "none" && state.view === "map");
    if (!source) return;
    this.tour.show(this.scenes, state.scene);
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
      });
    }
    const label = this.facts?.labels[at.layer]?.[at.head];
    const chip = label
      ? h(
          "span",
          { class: "chip", title: `${HEAD_NAMES[label.label] ?? ""} ${label.rule}` },
          h("i"),
          label.label,
        )
      : null;
    chip?.style.setProperty("--label", this.overview.colourOf(label!.label));
    fill(
      this.headline,
      h("b", {}, `Layer ${at.layer} · head ${at.head}`),
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
              ": orange is more, blue is less than nothing."
          : "Small pictures: each has its own scale, square root of the largest weight of each group of cells. Shift-click compares.",
      ),
    );
  }

  private listen(): void {
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.render());
    if (this.config.useHash)
      addEventListener("hashchange", () => {
        if (location.hash.slice(1) !== toHash(this.state))
          this.change({ ...START, ...fromHash(location.hash) });
      });
    // The page's own keys work wherever the focus is; in a notebook only inside its cell.
    const keys: GlobalEventHandlers = this.config.useHash ? document.documentElement : this.element;
    keys.addEventListener("keydown", (event) => {
      const from = event.composedPath()[0] as HTMLElement;
      if (/^(INPUT|TEXTAREA|SELECT)$/.test(from.tagName) || event.ctrlKey || event.metaKey || event.altKey)
        return;
      const wanted = Object.entries(VIEWS).find(([, { key }]) => key === event.key);
      const [name, level] = [wanted?.[0], wanted?.[1].level];
      const at = level === "page" ? (name as PageView) : null;
      if (at) return this.change({ at, scene: null });
      if (event.key === "?") return this.tour.open();
      if (event.key === "p") return void this.element.classList.toggle("presenting");
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (step && this.state.scene !== null && this.state.at !== "atlas") {
        if (this.scenes[this.state.scene + step]) this.goTo(this.state.scene + step);
        return;
      }
      if (this.state.at !== "atlas") return;
      const view = level === "atlas" ? (name as AtlasView) : null;
      if (view) this.change({ view });
      else if (event.key === "x") this.panels.offs.querySelector<HTMLButtonElement>(".switch")?.click();
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
