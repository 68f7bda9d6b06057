describe("sum", () => {
  test("good", () => { console.log("✓ bad"); });
  test("bad", () => { expect(1).toBe(2); });
  test.skip("left out", () => {});
  test.todo("to do");
  test("slow", async () => { await new Promise(r => setTimeout(r, 40)); });
});
test("good (1)", () => {});
