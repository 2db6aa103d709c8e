// Elements without a framework. Text only ever becomes a text node, so no token can become markup.

type Child = Node | string | number | null | undefined | false | Child[];
type Props = Record<string, unknown>;

export function h<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  props: Props = {},
  ...children: Child[]
): HTMLElementTagNameMap[K] {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on") && typeof value === "function")
      element.addEventListener(name.slice(2), value as EventListener);
    else if (name === "class") element.className = String(value);
    else if (name in element && !name.includes("-") && name !== "list")
      (element as unknown as Props)[name] = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  append(element, children);
  return element;
}

/** The same for SVG. */
export function svg(
  tag: string,
  props: Record<string, string | number> = {},
  ...children: Child[]
): SVGElement {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(props)) element.setAttribute(name, String(value));
  append(element, children);
  return element;
}

function append(element: Node, children: Child[]): void {
  for (const child of children) {
    if (child === null || child === undefined || child === false) continue;
    if (Array.isArray(child)) append(element, child);
    else element.appendChild(child instanceof Node ? child : document.createTextNode(String(child)));
  }
}

/** New children. Who had the focus has it again: the same control by name, or the one in its place. */
export function fill(element: HTMLElement, ...children: Child[]): void {
  const root = element.getRootNode() as Document | ShadowRoot;
  const active = root.activeElement as HTMLElement | null;
  const held = active && active !== element && element.contains(active) ? active : null;
  const alike = () => (held ? [...element.querySelectorAll<HTMLElement>(held.tagName)] : []);
  const index = held ? alike().indexOf(held) : -1;
  element.replaceChildren();
  append(element, children);
  if (!held) return;
  if (held.isConnected) return held.focus({ preventScroll: true }); // taken out and put back
  const name = (one: HTMLElement) => one.getAttribute("aria-label") ?? one.textContent;
  const now = alike();
  const same = (one: HTMLElement | undefined) => one !== undefined && name(one) === name(held);
  (same(now[index]) ? now[index] : (now.find(same) ?? now[index]))?.focus({ preventScroll: true });
}

export function option(value: string, label: string, chosen: boolean, disabled = false): HTMLOptionElement {
  return h("option", { value, selected: chosen, disabled }, label);
}

/** A row of buttons of which one is pressed. */
export function choice<T extends string>(
  name: string,
  options: Record<T, string>,
  chosen: T,
  pick: (value: T) => void,
): HTMLElement {
  const buttons = (Object.entries(options) as [T, string][]).map(([value, label]) =>
    h(
      "button",
      {
        type: "button",
        "aria-pressed": String(value === chosen),
        "data-value": value,
        onclick: () => pick(value),
      },
      label,
    ),
  );
  return h("div", { class: "choice", role: "group", "aria-label": name }, buttons);
}

/** The one way numbers are written: 0.640, 12.346, 1.1e−16, −∞. */
export function number(value: number): string {
  if (!Number.isFinite(value)) return value === -Infinity ? "−∞" : String(value);
  const size = Math.abs(value);
  if (size !== 0 && size < 0.0005) return value.toExponential(1).replaceAll("-", "−");
  return value.toFixed(size >= 100 ? 1 : 3).replace("-", "−");
}

/** 1st, 2nd, 3rd, 11th, 233rd. */
export function ordinal(value: number): string {
  const tens = value % 100;
  const ending = tens > 10 && tens < 14 ? "th" : (["th", "st", "nd", "rd"][value % 10] ?? "th");
  return `${value}${ending}`;
}

/** "1 head", "2 heads". */
export const plural = (count: number, noun: string): string => `${count} ${noun}${count === 1 ? "" : "s"}`;

/** Shares are percents where they stand in a sentence: 64 %, 0.4 %, under 0.1 %. */
export function percent(share: number): string {
  if (share > 0 && share < 0.001) return "under 0.1 %";
  return `${(100 * share).toFixed(share < 0.0995 ? 1 : 0)} %`;
}
