// What is looked at, to an address and back.

import assert from "node:assert/strict";
import { test } from "node:test";
import { fromHash, START, type State, toHash } from "../src/state";

test("an address gives back the state it was written from", () => {
  const state: State = {
    ...START,
    at: "atlas",
    text: "a & b = #1, ü, 日本",
    layer: 3,
    head: 7,
    query: 0,
    key: 11,
    off: [
      [0, 2],
      [5, 1],
    ],
    zoom: { x: 1.5, y: 2.25, px: 36.125 },
    compare: "heads off",
    difference: true,
    suggest: ["tired", "wide"],
    theme: "dark",
  };
  assert.deepEqual({ ...START, ...fromHash(`#${toHash(state)}`) }, state);
});

test("what is as at the start is not in the address", () => {
  assert.equal(toHash(START), "");
  assert.equal(toHash({ ...START, head: 5 }), "head=5");
});

test("an address that says what it should not is read without that", () => {
  const said = fromHash(
    "#layer=-1&head=1.5&at=nowhere&view=map&off=[[1]]&zoom={}&difference=1&__proto__=1&text=<b>",
  );
  assert.deepEqual(said, { view: "map", text: "<b>" });
});
