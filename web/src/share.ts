// Sharing what is seen: a path of views with captions as one offline file, a picture, the numbers, a notebook cell.

import type { PageContext } from "./context";
import { fill, h, option } from "./dom";
import { cellsOf, type FigurePanel, type FigureSize, mapFigure, withText } from "./figure";
import { pdfOf } from "./pdf";
import { snapshot } from "./snapshot";
import { sideTokens } from "./stage";
import type { Scene } from "./types";
import { labels } from "./words";

/** What a picture of the page is of; `links` draws a canvas anew, as vectors. */
export interface Drawing {
  root: HTMLElement;
  links: (canvas: HTMLCanvasElement) => string;
  panels: () => FigurePanel[]; // of the map
}

export interface PathView extends Scene {
  doc: string; // id of the trace it shows
}

const MOST_CELLS = 1_000_000; // of a table

type Needs = Pick<PageContext, "state" | "source" | "theme" | "backend" | "docs" | "failed">;

export class Share {
  readonly element = h("details", { class: "share" });
  private readonly list = h("ol", { class: "pathlist" });
  private readonly caption = h("input", {
    "aria-label": "caption of this view",
    placeholder: "caption of this view",
  });
  private readonly bytes = h("span", { class: "quiet", role: "status" });
  private readonly width = h(
    "select",
    {},
    option("", "as on the page", true),
    option("85", "one column (85 mm)", false),
    option("175", "two columns (175 mm)", false),
  );
  private readonly letters = h(
    "select",
    { title: "Of maps; the letters of other views keep their share of the width." },
    [7, 8, 9, 10].map((size) => option(String(size), `${size} pt`, size === 8)),
  );
  path: PathView[] = [];

  constructor(
    private readonly page: Needs,
    private readonly drawing: () => Drawing,
  ) {
    const doing = (name: string, act: () => unknown) =>
      h(
        "button",
        {
          type: "button",
          onclick: () => {
            Promise.resolve()
              .then(act)
              .catch((error: unknown) => page.failed(error));
          },
        },
        name,
      );
    fill(
      this.element,
      h("summary", { role: "button" }, "Share"),
      h(
        "div",
        { class: "sharing" },
        h("h2", {}, "Your own tour"),
        this.list,
        h(
          "form",
          { class: "player", onsubmit: (event: Event) => this.add(event) },
          this.caption,
          h("button", { type: "submit" }, "Add this view"),
        ),
        doing("Save as one offline file", () => this.save()),
        this.bytes,
        h("h2", {}, "What is shown now"),
        h(
          "div",
          { class: "player" },
          h("label", { class: "inline" }, "width", this.width),
          h("label", { class: "inline" }, "letters", this.letters),
        ),
        h(
          "div",
          { class: "player" },
          doing("SVG", () => this.svg().then((text) => download("regard.svg", text, "image/svg+xml"))),
          doing("PDF", () => this.pdf()),
          doing("PNG", () => this.png()),
          doing("CSV", () => this.csv().then((text) => download("regard.csv", text, "text/csv"))),
          doing("Notebook cell", () => download("regard-cell.py", this.cell(), "text/x-python")),
        ),
      ),
    );
    this.drawList();
    this.element.addEventListener("toggle", () => void this.measure());
  }

  /** Say how large the file would be before anybody waits for it. */
  private async measure(): Promise<void> {
    const { backend, source } = this.page;
    if (!this.element.open || !backend || !source) return;
    const docs = this.path.length ? [...new Set(this.path.map(({ doc }) => doc))] : [source.meta.id];
    try {
      const { bytes, most } = await backend.savedSize(docs);
      const size = (count: number) => `${(count / 1e6).toFixed(count < 1e7 ? 1 : 0)} MB`;
      this.bytes.textContent =
        bytes > most
          ? `It would have ${size(bytes)}, more than ${size(most)}: choose a shorter text, or some layers with regard look --save --layers.`
          : `About ${size(bytes + 2e5)}.`;
    } catch {
      this.bytes.textContent = ""; // saving says what is wrong
    }
  }

  close(): void {
    this.element.open = false;
  }

  private add(event: Event): void {
    event.preventDefault();
    const { state, source } = this.page;
    if (!source) return;
    const { model, text, doc, scene, theme, ...view } = state;
    const title = `${this.path.length + 1}.`;
    this.path.push({
      title,
      says: [this.caption.value.trim() || this.name()],
      state: view,
      doc: source.meta.id,
    });
    this.caption.value = "";
    this.drawList();
  }

  private name(): string {
    const { layer, head, at } = this.page.state;
    return `Head ${layer}.${head}, ${at}`;
  }

  private drawList(): void {
    fill(
      this.list,
      this.path.map((view, i) =>
        h(
          "li",
          {},
          String(view.says[0]),
          " ",
          h(
            "button",
            {
              type: "button",
              "aria-label": `remove view ${i + 1}`,
              onclick: () => {
                this.path.splice(i, 1);
                this.drawList();
              },
            },
            "×",
          ),
        ),
      ),
      this.path.length === 0 &&
        h("li", { class: "quiet" }, "No view yet: the file then opens with this one."),
    );
  }

  /** The page as a file. A live one is written by Python; a saved one is itself, with another path. */
  private async save(): Promise<void> {
    if (!this.path.length) this.add(new Event("submit"));
    const { backend } = this.page;
    if (backend) return download("regard.html", await backend.save(this.path), "text/html");
    const copy = document.documentElement.cloneNode(true) as HTMLElement;
    const data = copy.querySelector("#regard-data");
    if (!data) throw new Error("This page cannot copy itself: save it from `regard look`.");
    const held = JSON.parse(data.textContent!) as { path: Scene[] };
    held.path = this.path.map(({ doc, ...scene }) => ({
      ...scene,
      state: { ...scene.state, doc: this.page.docs.findIndex((each) => each.meta.id === doc) },
    }));
    const signs: Record<string, string> = { "<": "\\u003c", ">": "\\u003e", "&": "\\u0026" };
    data.textContent = JSON.stringify(held).replace(/[<>&]/g, (c) => signs[c]!);
    return download("regard.html", `<!doctype html>\n${copy.outerHTML}`, "text/html");
  }

  private async weights(): Promise<{ rows: string[]; cols: string[]; values: Float32Array }> {
    const { state, source } = this.page;
    const { layer, head, valued, at, query } = state;
    const { queries, keys } = source!.meta.layers[layer]!;
    const [r0, r1] = at === "atlas" || query === null ? [0, queries] : [query, query + 1];
    if ((r1 - r0) * keys > MOST_CELLS)
      throw new Error("This head is too large for a table: choose a token in Story.");
    const region = { layer, head, r0, r1, c0: 0, c1: keys, nRow: r1 - r0, nCol: keys, valued };
    const { values } = await source!.tile(region);
    const rows = labels(sideTokens(source!, layer, "rows")).slice(r0, r1);
    return { rows, cols: labels(sideTokens(source!, layer, "cols")), values };
  }

  async csv(): Promise<string> {
    const { rows, cols, values } = await this.weights();
    const quoted = (text: string) => `"${text.replaceAll('"', '""')}"`;
    const lines = rows.map((row, r) =>
      [
        quoted(row),
        ...cols.map((_, c) => values[r * cols.length + c]!).map((v) => (Number.isNaN(v) ? "" : v)),
      ].join(","),
    );
    return `${[["", ...cols.map(quoted)].join(","), ...lines].join("\n")}\n`;
  }

  async svg(): Promise<string> {
    const { page } = this;
    const { at, view } = page.state;
    const says = this.command();
    if (at === "atlas" && view === "map") {
      const panels = this.drawing().panels();
      return mapFigure(panels, await Promise.all(panels.map(cellsOf)), this.size, says);
    }
    const { root, links } = this.drawing();
    return snapshot(root, page.theme, at === "atlas" ? this.title : "", links, says, this.size.millimetres);
  }

  private get title(): string {
    const { source, state } = this.page;
    return `${source!.meta.title}, layer ${state.layer}, head ${state.head}`;
  }

  private get size(): FigureSize {
    return { millimetres: Number(this.width.value) || null, points: Number(this.letters.value) };
  }

  private async png(): Promise<void> {
    const image = new Image();
    image.src = URL.createObjectURL(new Blob([await this.svg()], { type: "image/svg+xml" }));
    await image.decode();
    const fine = this.size.millimetres === null ? 2 : 600 / 96; // dots a pixel: 600 an inch in print
    const canvas = h("canvas", {
      width: Math.round(fine * image.width),
      height: Math.round(fine * image.height),
    });
    canvas.getContext("2d")!.drawImage(image, 0, 0, canvas.width, canvas.height);
    const blob = await new Promise<Blob | null>((resolve) => canvas.toBlob(resolve, "image/png"));
    if (!blob) throw new Error("This picture is too large for a PNG here: choose SVG or PDF.");
    const bytes = withText(new Uint8Array(await blob.arrayBuffer()), this.command());
    download("regard.png", new Blob([bytes as BlobPart]), "image/png");
  }

  private async pdf(): Promise<void> {
    const bytes = await pdfOf(await this.svg(), this.command());
    download("regard.pdf", new Blob([bytes as BlobPart]), "application/pdf");
  }

  /** The command that shows this again, or draws its map. */
  command(): string {
    const { state, source } = this.page;
    const { meta } = source!;
    const quoted = (text: string) => `'${text.replaceAll("'", "'\\''")}'`;
    const words = ["regard look", quoted(meta.text)];
    const random = meta.modelKey.endsWith(" (random)");
    if (meta.modelKey) words.push("--model", quoted(meta.modelKey.replace(/ \(random\)$/, "")));
    if (random) words.push("--random");
    if (meta.target) words.push("--target", quoted(meta.target));
    words.push("--layer", String(state.layer), "--head", String(state.head));
    if (state.at === "atlas") {
      words.push("--view", state.view);
      if (state.compare === "head" && state.difference && state.view === "map")
        words.push("--against", `${state.layer2}.${state.head2}`);
    }
    if (state.query !== null && !(state.at === "atlas" && state.view === "map"))
      words.push("--query", String(state.query));
    if (state.at === "atlas" && state.view === "map") {
      const [{ rect, rows, cols }] = this.drawing().panels() as [FigurePanel];
      if (rect.r0 > 0 || rect.r1 < rows.length) words.push("--rows", `${rect.r0}:${rect.r1}`);
      if (rect.c0 > 0 || rect.c1 < cols.length) words.push("--cols", `${rect.c0}:${rect.c1}`);
      words.push("--scale", state.scale, "--svg", "figure.svg");
    }
    return words.join(" ");
  }

  cell(): string {
    const { state, source } = this.page;
    const { layer, head } = state;
    const key = JSON.stringify(source!.meta.modelKey || source!.meta.title);
    return `import regard\n\nmodel = regard.load(${key})\nregard.show(${JSON.stringify(source!.meta.text)}, model=model, layer=${layer}, head=${head})\n`;
  }
}

function download(name: string, content: string | Blob | ArrayBuffer, type: string): void {
  const link = h("a", { href: URL.createObjectURL(new Blob([content], { type })), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
