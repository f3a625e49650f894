// The page: tabs, forms, and what they say when something is wrong.

import { asCommand, CallError, describe, predict, progress, setToken } from "./calls.js";
import { cutNote, make, nameOfLabel, PANELS } from "./panels.js";

const at = (id) => document.getElementById(id);
const tabs = Array.from(document.querySelectorAll("[role=tab]"));
const methodOf = (tab) => tab.id.replace("tab-", "");
const panelOf = (method) => at(`panel-${method}`);
const LOOK_MS = 2000; // between looks whether the model is loaded
const MOST_LABELS = 30; // that are named
let afterToken; // what a call wanted when the server asked for a token

// ---------------------------------------------------------------------------------------------------------
// Tabs

function choose(tab, isFocused = false) {
  for (const each of tabs) {
    const isChosen = each === tab;
    each.setAttribute("aria-selected", String(isChosen));
    each.tabIndex = isChosen ? 0 : -1;
    panelOf(methodOf(each)).hidden = !isChosen;
  }
  if (isFocused) {
    tab.focus();
  }
}

function onTabKey(event) {
  const place = tabs.indexOf(event.currentTarget);
  const places = { ArrowRight: place + 1, ArrowLeft: place - 1, Home: 0, End: tabs.length - 1 };
  if (event.key in places && !event.ctrlKey && !event.altKey && !event.metaKey) {
    event.preventDefault();
    choose(tabs.at(places[event.key] % tabs.length), true);
  }
}

function offer(signatures) {
  for (const tab of tabs) {
    const method = methodOf(tab);
    const can = signatures.has(method);
    panelOf(method).querySelector(".cannot").hidden = can;
    panelOf(method).querySelector(".work").hidden = !can;
    tab.querySelector(".unseen")?.remove();
    tab.classList.toggle("absent", !can);
    if (!can) {
      tab.append(make("span", { class: "unseen" }, ", not in this model"));
    }
  }
  const chosen = tabs.find((tab) => tab.getAttribute("aria-selected") === "true");
  const best = tabs.find((tab) => signatures.has(methodOf(tab))) ?? tabs[0];
  choose(chosen && signatures.has(methodOf(chosen)) ? chosen : best);
  at("tabs").hidden = false;
}

// ---------------------------------------------------------------------------------------------------------
// Messages

function setError(field, message) {
  const id = `${field.id}-error`;
  at(id)?.remove();
  const others = (field.getAttribute("aria-describedby") ?? "").split(" ").filter((each) => each && each !== id);
  if (message) {
    field.after(make("p", { class: "error", id, role: "alert" }, message));
    field.setAttribute("aria-invalid", "true");
    others.unshift(id);
  } else {
    field.removeAttribute("aria-invalid");
  }
  if (others.length) {
    field.setAttribute("aria-describedby", others.join(" "));
  } else {
    field.removeAttribute("aria-describedby");
  }
}

/** Shows an error at each field that has one, moves to the first, and returns whether there was one. */
function refuse(form, errors) {
  const wrong = fieldsOf(form).filter((field) => {
    setError(field, errors[field.name]);
    return errors[field.name];
  });
  wrong[0]?.focus();
  return wrong.length > 0;
}

/** Asks for the token. Where the focus was, it returns to when there is one. */
function askForToken(message, then) {
  const before = document.activeElement;
  afterToken = () => {
    (before === document.body ? at("panels") : before).focus();
    then();
  };
  at("token").hidden = false;
  setError(at("token-field"), message);
  at("token-field").focus();
}

/** Marks a form as waiting. Its button keeps the focus: it is disabled in words only. */
function setBusy(form, words) {
  const button = form.querySelector("[type=submit]");
  button.dataset.words ??= button.textContent;
  button.textContent = words || button.dataset.words;
  if (words) {
    form.setAttribute("aria-busy", "true");
    button.setAttribute("aria-disabled", "true");
  } else {
    form.removeAttribute("aria-busy");
    button.removeAttribute("aria-disabled");
  }
}

// ---------------------------------------------------------------------------------------------------------
// A panel

function fieldsOf(form) {
  return Array.from(form.querySelectorAll("input, textarea"));
}

function valuesOf(form) {
  return Object.fromEntries(fieldsOf(form).map((field) => [field.name, field.value]));
}

function missing(needs, values) {
  return Object.fromEntries(Object.entries(needs).filter(([name]) => !values[name].trim()));
}

async function ask(method) {
  const panel = PANELS[method];
  const form = panelOf(method).querySelector("form");
  const values = valuesOf(form);
  const errors = missing(panel.needs, values);
  if (form.hasAttribute("aria-busy") || refuse(form, { ...panel.check?.(values), ...errors })) {
    return;
  }
  const result = panelOf(method).querySelector(".result");
  setBusy(form, panel.waiting);
  at("said").textContent = panel.waiting;
  try {
    const instances = panel.instances(values);
    const begun = performance.now();
    const { predictions, cut } = await predict(method, instances);
    const took = performance.now() - begun;
    const { parts, mark } = panel.show(values, predictions);
    if (cut.length) {
      parts.splice(1, 0, cutNote(method, instances, cut)); // behind the answer itself
    }
    present(result, { parts, mark }, asCommand(method, instances), took);
  } catch (error) {
    fail(result, error, () => ask(method));
  } finally {
    setBusy(form, "");
  }
}

function present(result, { parts, mark }, command, took) {
  const how = make("details", {}, make("summary", {}, "The same call from a shell"), make("pre", { tabindex: "0" }, command));
  result.replaceChildren(...parts, make("p", { class: "note" }, `Answered in ${Math.round(took)} ms.`), how);
  const said = [".big, .passage", ".cut"].map((each) => result.querySelector(each)?.textContent ?? "");
  at("said").textContent = `${result.getAttribute("aria-label")}: ${said.join(" ").trim()}`;
  reveal(mark ?? result);
}

/** Scrolls to an element: to the middle of the passage that it is in, and as little as possible of the page. */
function reveal(element) {
  const passage = element.closest(".passage");
  if (passage) {
    passage.scrollTop = element.offsetTop - passage.clientHeight / 2;
  }
  const isStill = matchMedia("(prefers-reduced-motion: reduce)").matches;
  element.scrollIntoView({ block: "nearest", behavior: isStill ? "auto" : "smooth" });
}

function fail(result, error, again) {
  at("said").textContent = "";
  if (error.kind === "token") {
    askForToken(error.message, again);
    return;
  }
  if (!(error instanceof CallError)) {
    console.error(error);
  }
  const message = error instanceof CallError ? error.message : "The server's answer is not what it should be.";
  result.replaceChildren(make("p", { class: "error", role: "alert" }, message));
}

function onKey(event, form) {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && event.target.matches("textarea")) {
    event.preventDefault();
    form.requestSubmit();
  }
}

function prepare(method) {
  const form = panelOf(method).querySelector("form");
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    ask(method);
  });
  form.addEventListener("keydown", (event) => onKey(event, form));
  form.addEventListener("input", ({ target }) => setError(target, ""));
  for (const [title, values] of PANELS[method].examples) {
    const button = make("button", { type: "button", class: "example" }, title);
    button.addEventListener("click", () => {
      if (form.hasAttribute("aria-busy")) {
        return;
      }
      fieldsOf(form).forEach((field) => (field.value = values[field.name]));
      ask(method);
    });
    form.querySelector(".examples").append(button);
  }
}

function insertMask() {
  const field = at("fill_mask-text");
  field.focus();
  field.setRangeText("[MASK]", field.selectionStart, field.selectionEnd, "end");
}

// ---------------------------------------------------------------------------------------------------------
// The start

async function start() {
  at("trouble").hidden = true;
  at("about").textContent = "Asking the server what it can…";
  try {
    const { version, signatures, labels } = await describe();
    at("about").textContent = version && `Version ${version}`;
    nameLabels(labels);
    offer(signatures);
    at("loading").hidden = true;
  } catch (error) {
    at("about").textContent = "";
    at("loading").hidden = error.kind !== "loading";
    if (error.kind === "token") {
      askForToken(error.message, start);
    } else if (error.kind === "loading") {
      waitForModel();
    } else {
      at("trouble").hidden = false;
      at("trouble-text").textContent = error.message;
    }
  }
}

/** Looks until the model is loaded, then starts. */
async function waitForModel() {
  try {
    const { isReady, loading } = await progress();
    at("loading-text").textContent = loading ? `Version ${loading} is being loaded.` : "";
    if (!isReady) {
      setTimeout(waitForModel, LOOK_MS);
      return;
    }
  } catch {
    // Whatever it is, the next call says it.
  }
  start();
}

/** Says which labels a classifier has, before it is asked. */
function nameLabels(labels) {
  const left = labels.length - MOST_LABELS;
  const names = labels.slice(0, MOST_LABELS).map(nameOfLabel).join(", ");
  at("classify-labels").textContent = `Labels: ${names}${left > 0 ? ` and ${left} more` : ""}.`;
  at("classify-labels").hidden = !labels.length;
}

tabs.forEach((tab) => {
  tab.addEventListener("click", () => choose(tab));
  tab.addEventListener("keydown", onTabKey);
  prepare(methodOf(tab));
});
at("insert").addEventListener("click", insertMask);
at("again").addEventListener("click", () => {
  at("panels").focus();
  start();
});
at("token").querySelector("form").addEventListener("submit", (event) => {
  event.preventDefault();
  const field = at("token-field");
  if (!field.value) {
    setError(field, "Write the token.");
    field.focus();
    return;
  }
  setToken(field.value);
  setError(field, "");
  at("token").hidden = true;
  afterToken();
});
start();
