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

function append(element: Node, children: Child[]): void {
  for (const child of children) {
    if (child === null || child === undefined || child === false) continue;
    if (Array.isArray(child)) append(element, child);
    else element.appendChild(child instanceof Node ? child : document.createTextNode(String(child)));
  }
}

export function fill(element: HTMLElement, ...children: Child[]): void {
  element.replaceChildren();
  append(element, children);
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

/** 0.1234, 0.00012 as 1.2e-4, 1 as 1.0000. */
export function number(value: number, digits = 4): string {
  if (!Number.isFinite(value)) return value === -Infinity ? "−∞" : String(value);
  const size = Math.abs(value);
  if (size !== 0 && size < 0.5 * 10 ** -digits) return value.toExponential(1).replace("-", "−");
  return value.toFixed(size >= 100 ? 1 : digits).replace("-", "−");
}
