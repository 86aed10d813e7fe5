// Text of a model as it comes: paragraphs, blocks of code, code in a line. Made of text nodes only, and each letter once,
// so that a long answer costs no more than its length.

const make = (name, className) => Object.assign(document.createElement(name), { className });

/** A growing text below `root`. */
export class Prose {
  constructor(root) {
    this.root = root;
    this.block = null;
    this.isCode = false;
    this.line = "";
    this.tail = document.createTextNode("");
  }

  push(text) {
    const lines = (this.line + text).split("\n");
    this.line = lines.pop();
    this.tail.remove();
    lines.forEach((line) => this.whole(line));
    this.rest();
  }

  /** The line that is not over yet; one that may be a fence is held back. */
  rest() {
    if (this.line === "" || this.line.startsWith("```") || /^`{1,2}$/.test(this.line)) return;
    if (!this.block) this.paragraph();
    this.tail.data = (this.isCode || !this.block.hasChildNodes() ? "" : "\n") + this.line;
    this.block.append(this.tail);
  }

  /** Ends the text. */
  finish() {
    this.tail.remove();
    if (this.line !== "") this.whole(this.line);
    this.line = "";
  }

  whole(line) {
    if (line.startsWith("```")) {
      if (this.isCode) this.block = null;
      else this.code(line.slice(3).trim());
      this.isCode = !this.isCode;
    } else if (this.isCode) {
      this.block.append(line + "\n");
    } else if (line.trim() === "") {
      this.block = null;
    } else {
      if (!this.block) this.paragraph();
      else if (this.block.hasChildNodes()) this.block.append("\n");
      line.split("`").forEach((part, i, all) => {
        const isCode = i % 2 === 1 && i < all.length - 1;
        if (!isCode) return this.block.append(i % 2 === 1 ? "`" + part : part);
        const code = make("code", "");
        code.textContent = part;
        this.block.append(code);
      });
    }
  }

  paragraph() {
    this.block = make("p", "");
    this.root.append(this.block);
  }

  code(language) {
    const [frame, top, name, copy] = [make("div", "code"), make("div", "top"), make("span", ""), make("button", "")];
    const [pre, code] = [make("pre", ""), make("code", "")];
    name.textContent = language || "code";
    copy.type = "button";
    copy.textContent = "Copy";
    copy.addEventListener("click", () => navigator.clipboard?.writeText(code.textContent));
    pre.tabIndex = 0;
    top.append(name, copy);
    pre.append(code);
    frame.append(top, pre);
    this.root.append(frame);
    this.block = code;
  }
}
