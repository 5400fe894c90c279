'use strict';
/* The script of the page of `tenon explain --html`. D is the data that the program put into the page; X the explanation of the
 * program shown, exactly `tenon explain --json`. Sections draw themselves from it; select() is what connects them. */
const $ = id => document.getElementById(id), D = JSON.parse($('data').textContent), X = D.programs[0].explain, T = D.programs[0].texts || {};
const SVG = new Set(['svg', 'g', 'rect', 'path', 'text', 'line', 'circle', 'title', 'tspan']);
function h(tag, attrs, ...kids) {
  const e = SVG.has(tag) ? document.createElementNS('http://www.w3.org/2000/svg', tag) : document.createElement(tag);
  for (const [k, v] of Object.entries(attrs || {})) {
    if (k.startsWith('on')) e.addEventListener(k.slice(2), v); else if (v !== undefined && v !== null && v !== false) e.setAttribute(k, v === true ? '' : v);
  }
  e.append(...kids.flat(9).filter(x => x !== null && x !== undefined && x !== false));
  return e;
}
const three = x => x === 0 ? '0' : x >= 1000 ? Math.round(x).toLocaleString('en') : String(+x.toPrecision(3));
const bytes = n => n < 1024 ? n + ' B' : n < 1 << 20 ? three(n / 1024) + ' KiB' : n < 2 ** 30 ? three(n / 2 ** 20) + ' MiB' : three(n / 2 ** 30) + ' GiB';
const time = us => us === 0 ? '0' : us < 1 ? three(us * 1e3) + ' ns' : us < 1e3 ? three(us) + ' µs' : three(us / 1e3) + ' ms';
const percent = x => x < 0.001 && x > 0 ? '<0.1 %' : (100 * x).toFixed(x < 0.1 ? 1 : 0) + ' %';
const beside = (p, c) => `${bytes(c)} counted, ${three(p) === three(c) ? 'the same' : c && p < 2 * c ? (p > c ? '+' : '−') + percent(Math.abs(p / c - 1)) : `predicted ${c ? three(p / c) + ' times that' : bytes(p)}`}`;
const count = (n, what) => n.toLocaleString('en') + ' ' + what + (n === 1 ? '' : 's');
if (X.short) { X.values = [], X.edges = [], X.buffers = [], X.decisions = []; X.kernels.forEach(k => { k.values = [], k.touches = [], k.in_place = [], k.decisions = []; }); }
const K = X.kernels, GPU = X.machine.gpu, ALL = X.predicted_us;
const V = new Map(X.values.map(v => [v.id, v])), B = new Map(X.buffers.map(b => [b.buffer, b]));
const LEVELS = GPU ? [['l1', 'registers ↔ shared memory', '--l1'], ['l2', 'shared memory ↔ L2', '--l2'], ['memory', 'L2 ↔ memory', '--memory']]
  : [['l1', 'registers ↔ L1', '--l1'], ['l2', 'L1 ↔ L2', '--l2'], ['l3', 'L2 ↔ L3', '--l3'], ['memory', 'L3 ↔ memory', '--memory']];
const VIEWS = new Set(['reshape', 'expand', 'permute', 'slice', 'flip', 'window']), SLOTS = ['the temporaries', 'the states', 'the states that no run changes', 'the constants'];
const byTime = K.map((k, i) => i).sort((a, b) => K[b].predicted_us - K[a].predicted_us);
const users = new Map(), into = K.map(() => []), outof = K.map(() => []);
X.values.forEach(v => (v.in || []).forEach(i => users.set(i, (users.get(i) || []).concat(v.id))));
X.edges.forEach(e => (into[e.to].push(e), outof[e.from].push(e)));
const name = id => { const v = V.get(id); return v ? (v.name || '%' + id + ' ' + v.op) : 'a value'; };
const long = id => { const v = V.get(id); return v ? `%${id} ${v.op} ${v.shape}${v.name ? ' (' + v.name + ')' : ''}` : ''; };
const kname = i => `kernel ${K[i].kernel}: ${K[i].name}`, reason = d => d >= 0 ? X.decisions[d].reason : 'nothing was noted';
const HINTS = [[/^several kernels use it/, 'It is computed once and stored, because each reader would otherwise have to compute it again.'],
  [/repeat the work for every tile/, 'A matrix product reads its operands many times: computed inside, this would be computed as often.'],
  [/other rows/, 'Kernels are joined where a block of rows can go through both; here the rows of one are not those of the other.'],
  [/needed elsewhere, too/, 'What the first kernel makes must be in memory for others anyway, so that joining these two saves little.'],
  [/an output of the graph/, 'The caller wants to read it, so that it has to be in memory.'],
  [/one contraction a kernel/, 'Each matrix product or convolution has tiles of its own, which fit its shape.'],
  [/fusion level/, 'A higher level may fuse it: see “What if”.']];
const hint = text => (HINTS.find(x => x[0].test(text)) || [0, ''])[1], go = (to, text) => h('button', { class: 'link', type: 'button', onclick: () => select(to, true) }, text);
const params = k => ['reads', 'writes'].map((how, n) => { const names = k.touches.filter(t => t[how] && (n || !t.writes)).map(t => B.get(t.buffer)).filter(b => b && b.slot > 0 && b.slot < 3).map(b => name(b.value)).sort((x, y) => x.length - y.length);
  return names.length ? `${n ? 'updates' : 'reads'} ${names[0]}${names.length > 1 ? ` and ${names.length - 1} more` : ''}` : ''; }).filter(x => x).join(', ');
const valueLink = id => go({ value: id }, name(id)), kernelLink = i => go({ kernel: i }, kname(i)), list = (xs, f) => xs.map((x, i) => [i ? ', ' : '', f(x)]);
const fill = (id, ...kids) => $(id).replaceChildren(...kids.flat(9).filter(x => x !== null && x !== undefined && x !== false));

/* ---- summary ---- */
function tile(value, text) { return h('div', { class: 'tile' }, h('b', {}, value), h('span', {}, text)); }
function summary() {
  const ops = X.short ? X.n_values : X.values.filter(v => v.kernel !== undefined).length, spec = D.programs[0].spec, moved = X.bytes_read + X.bytes_written;
  document.title = `Tenon explains ${spec}`;
  fill('title', `What Tenon made of ${spec}`);
  fill('intro', `Graph “${X.graph}”, compiled for the device ${X.device} (${X.machine.title}), fusion level ${X.fusion}, ${count(X.threads, 'thread')}. `,
    'Click any value or kernel to see where it lives and why. Times and bytes are predictions of the machine model', D.profile ? '; where it says so, they were measured.' : '.');
  fill('tiles', tile(time(ALL), 'predicted for one run, all kernels'), tile(`${ops.toLocaleString('en')} → ${X.n_kernels.toLocaleString('en')}`, 'operations became kernels'),
    tile(bytes(moved), `through memory at kernel borders; ${bytes(X.unfused_bytes_read + X.unfused_bytes_written)} without fusion`),
    tile(three(X.flops / 1e6) + ' Mflop', `arithmetic; ${three(X.flops / Math.max(1, moved))} for each byte moved`),
    tile(bytes(X.arena_bytes), `of temporaries planned; no plan needs less than ${bytes(X.arena_bound)}`));
  const codes = new Map(); /* launches of the same code are one bar */
  K.forEach((k, i) => { const c = codes.get(k.code) || codes.set(k.code, { i, n: 0, us: 0 }).get(k.code); c.n += k.launches || 1; c.us += k.launches_us || k.predicted_us; });
  const bars = [...codes.values()].sort((a, b) => b.us - a.us).slice(0, 10), rest = ALL - bars.reduce((s, b) => s + b.us, 0), others = X.n_kernels - bars.reduce((s, b) => s + b.n, 0);
  view.first = bars.length ? bars[0].i : 0;
  answers(bars.slice(0, 3));
  if (others > 0) bars.push({ us: rest, n: others });
  const most = Math.max(...bars.map(b => b.us), 1e-9);
  fill('top', bars.length ? bars.map((b, n) => h('div', { class: 'bar' }, h('div', {}, b.i === undefined ? count(b.n, 'other kernel') : [go({ kernel: b.i }, kname(b.i)), b.n > 1 && ` × ${b.n.toLocaleString('en')}`]),
    h('div', {}, h('i', { style: `width:calc(${(b.us / most).toFixed(4)} * var(--room));background:var(${b.i === undefined ? '--line' : n < 3 ? '--memory' : '--l2'})` }), h('span', {}, ` ${time(b.us)}, ${percent(b.us / ALL)} `, h('span', { class: 'soft' }, b.i === undefined ? '' : `bound by ${K[b.i].predicted_bound}`))))) : 'The program has no kernels.');
}
function answers(dear) {
  const worst = X.edges.slice().sort((a, b) => b.us - a.us)[0], v = (D.variants || []).find(v => v.label === 'batch 32'), one = x => x.explain.predicted_us / x.label.match(/\d+/)[0];
  const ask = (question, ...answer) => [h('dt', {}, question), h('dd', {}, ...answer)];
  fill('answers', dear.length > 0 && ask('Which three kernels cost most?', list(dear, b => [go({ kernel: b.i }, kname(b.i)), ` (${percent(b.us / ALL)})`]), '.'),
    worst && ask('Why were two layers not fused?', kernelLink(worst.from), ' and ', kernelLink(worst.to), `, between which ${bytes(worst.bytes)} move: ${reason(worst.decision)}. `, h('a', { href: '#why' }, X.edges.length > 1 ? `All ${X.edges.length}` : 'The table')),
    D.variants && ask('What would change at batch 32?', !v ? `Not computed: ${D.no_batch || 'the model cannot be compiled for it'}.` : `A run takes ${time(v.explain.predicted_us)}, ${time(one(v))} for one of the batch (at batch 1: ${time(one(D.variants.find(v => v.group === 'Batch')))}), in ${count(v.explain.n_kernels, 'kernel')}; ${bytes(v.explain.bytes_read + v.explain.bytes_written)} move and ${bytes(v.explain.arena_bytes)} are temporaries.`));
}
function enter(e) { if (e.key === 'Enter' || e.key === ' ') { e.preventDefault(); e.currentTarget.dispatchEvent(new MouseEvent('click', { bubbles: true })); } }

/* ---- a layered drawing: nodes { w, h }, edges { a, b } from earlier nodes to later ones. Gives nodes x, y and edges a path. ---- */
function layout(N, E) {
  const ups = N.map(() => []), downs = N.map(() => []), items = N.map((n, i) => ({ n, w: n.w, h: n.h, up: [], down: [], rank: 0 }));
  E.forEach(e => (ups[e.b].push(e.a), downs[e.a].push(e.b)));
  const waits = ups.map(u => u.length), order = N.map((n, i) => i).filter(i => !waits[i]);
  for (let k = 0; k < order.length; k++) downs[order[k]].forEach(d => { items[d].rank = Math.max(items[d].rank, items[order[k]].rank + 1); if (!--waits[d]) order.push(d); });
  for (let i = N.length; i-- > 0;) if (!ups[i].length && downs[i].length) items[i].rank = Math.min(...downs[i].map(d => items[d].rank)) - 1;
  const least = Math.min(0, ...items.map(i => i.rank)), rows = [], bends = E.reduce((s, e) => s + items[e.b].rank - items[e.a].rank, 0) < 20000;
  const put = i => ((rows[i.rank] = rows[i.rank] || []).push(i), i);
  items.forEach(i => { i.rank -= least; put(i); });
  E.forEach(e => {
    e.via = [items[e.a]];
    for (let r = items[e.a].rank + 1; bends && r < items[e.b].rank; r++) e.via.push(put({ w: 6, h: 0, up: [], down: [], rank: r }));
    e.via.push(items[e.b]);
    for (let k = 1; k < e.via.length; k++) { e.via[k - 1].down.push(e.via[k]); e.via[k].up.push(e.via[k - 1]); }
  });
  for (let r = 0; r < rows.length; r++) (rows[r] = rows[r] || []).forEach((x, i) => { x.at = i; });
  const mean = (xs, f) => xs.reduce((s, x) => s + f(x), 0) / xs.length, turns = rows.flat().length < 4000 ? 8 : 4; // a long backward pass: edges over hundreds of rows
  for (let turn = 0; turn < turns; turn++) {
    for (let n = 0; n < rows.length; n++) {
      const row = rows[turn % 2 ? rows.length - 1 - n : n], side = turn % 2 ? 'down' : 'up';
      row.forEach(x => { x.key = x[side].length ? mean(x[side], y => (y.at + 0.5) / rows[y.rank].length) : (x.at + 0.5) / row.length; });
      row.sort((a, b) => a.key - b.key || a.at - b.at).forEach((x, i) => { x.at = i; });
    }
  }
  rows.forEach(row => { let x = 0; row.forEach(i => { i.x = x; x += i.w + 18; }); });
  for (let turn = 0; turn < 1.5 * turns; turn++) {
    for (let n = 0; n < rows.length; n++) {
      const row = rows[turn % 2 ? rows.length - 1 - n : n], side = turn % 2 ? 'down' : 'up', want = [];
      let right = -Infinity, off = 0;
      row.forEach((i, k) => { want[k] = i[side].length ? mean(i[side], y => y.x + y.w / 2) - i.w / 2 : i.x; });
      row.forEach((i, k) => { i.x = Math.max(want[k], right); right = i.x + i.w + 18; off += i.x - want[k]; });
      row.forEach(i => { i.x -= off / row.length; });
    }
  }
  const left = Math.min(...items.map(i => i.x), ...E.flatMap(e => e.via.map(i => i.x)), Infinity);
  let y = 10, width = 0;
  rows.forEach(row => {
    const tall = Math.max(0, ...row.map(i => i.h));
    row.forEach(i => { i.x += 10 - left; i.y = y; i.bottom = y + (i.n ? i.h : tall); width = Math.max(width, i.x + i.w); });
    y += tall + 46;
  });
  items.forEach(i => { i.n.x = i.x; i.n.y = i.y; });
  E.forEach(e => {
    let [x0, y0] = [e.via[0].x + e.via[0].w / 2, e.via[0].bottom], d = `M${x0.toFixed(1)} ${y0}`;
    e.via.slice(1).forEach(i => {
      const x = i.x + i.w / 2, bow = Math.min(40, (i.y - y0) / 2);
      d += `C${x0.toFixed(1)} ${y0 + bow} ${x.toFixed(1)} ${i.y - bow} ${x.toFixed(1)} ${i.y}` + (i.n ? '' : `L${x.toFixed(1)} ${i.bottom}`);
      [x0, y0] = [x, i.bottom];
    });
    e.d = d;
  });
  return { width: width + 10, height: y };
}

/* ---- the graph ---- */
const P = D.programs[0].passes, view = { zoom: 0, at: P ? P.passes.length + 1 : 1, size: null }, LAST = new Map(P ? P.numbers.map((n, i) => [n, i + 1]) : []);
const clip = (s, n) => s.length > n ? s.slice(0, n - 1) + '…' : s;
function kernelNodes() {
  const N = [], E = [], of = new Map();
  const io = v => { if (!of.has(v)) { of.set(v, N.length); N.push({ key: 'v' + v, w: 150, h: 40, to: { value: v }, rows: [name(v), V.get(v).shape], plain: true }); } return of.get(v); };
  const crowd = new Set(X.values.filter(v => v.op === 'input' && (users.get(v.id) || []).length > 8).map(v => v.id)); /* lines to all would hide the rest */
  const reads = K.map(k => [...new Set(k.values.flatMap(v => V.get(v.id).in || []))].filter(v => V.get(v) && V.get(v).op === 'input' && !crowd.has(v)));
  reads.flat().forEach(io);
  const first = N.length;
  K.forEach((k, i) => {
    const own = k.values.filter(v => !VIEWS.has(v.op)), rows = (own.length ? own : k.values).slice(-9).map(v => ({ to: { value: v.id }, text: clip(`${v.op}  ${V.get(v.id).shape}`, 30) }));
    const more = k.values.length - rows.length, uses = params(k);
    N.push({ key: 'k' + i, w: 216, h: 48 + 17 * (rows.length + (more > 0) + (uses !== '')), to: { kernel: i }, fused: k.values.length > 1,
      rows: [clip(`${i}  ${k.name}`, 27), `${time(k.predicted_us)}, ${percent(k.predicted_us / ALL)}`], values: rows.concat(more > 0 ? [{ text: `and ${count(more, k.values.length > 9 ? 'other value' : 'view')}` }] : []).concat(uses ? [{ text: clip(uses, 29) }] : []), share: k.predicted_us / (K[byTime[0]].predicted_us || 1) });
    reads[i].forEach(v => E.push({ a: of.get(v), b: first + i }));
  });
  X.edges.forEach((e, i) => E.push({ a: first + e.from, b: first + e.to, edge: i }));
  return [N, E];
}
function nodeView(n) {
  return h('g', { class: 'node' + (n.fused ? ' fused' : '') + (n.kind ? ' ' + n.kind : ''), 'data-key': n.key, tabindex: 0, role: 'button', 'aria-label': n.rows.join(', '), transform: `translate(${n.x.toFixed(1)} ${n.y})`,
    onclick: e => { e.stopPropagation(); select(n.to, false); }, onkeydown: enter },
    h('rect', { width: n.w, height: n.h, rx: n.plain ? 18 : 6 }),
    n.share !== undefined && h('g', {}, h('rect', { x: 8, y: 39, width: n.w - 16, height: 3, style: 'fill:var(--line)' }), h('rect', { x: 8, y: 39, width: (n.w - 16) * n.share, height: 3, style: 'fill:var(--memory)' })),
    h('text', { x: n.plain ? n.w / 2 : 10, y: 17, 'text-anchor': n.plain ? 'middle' : 'start', style: 'font-weight:600' }, clip(n.rows[0], n.plain ? 21 : 28)),
    h('text', { x: n.plain ? n.w / 2 : 10, y: 33, 'text-anchor': n.plain ? 'middle' : 'start', class: 'soft' }, clip(n.rows[1], 28)),
    (n.values || []).map((r, i) => h('text', { x: 10, y: 58 + 17 * i, class: r.to ? '' : 'soft', onclick: e => { if (r.to) { e.stopPropagation(); select(r.to, false); } } }, r.text)));
}
/* Values as they are after pass `at` (0: as given), and what that pass removed. */
function frame(at) {
  const all = new Map(), live = new Set(), last = at - 1, put = v => (all.set(v[0], { n: v[0], op: v[1], shape: v[2], name: v[3], in: v[4], kind: '' }), live.add(v[0]));
  P.given.forEach(put);
  P.passes.slice(0, at).forEach((p, k) => {
    p.added.forEach(v => { put(v); if (k === last) all.get(v[0]).kind = 'new'; });
    p.removed.forEach(n => { if (k === last) all.get(n).kind = 'gone'; else live.delete(n); });
    p.rewired.forEach(([n, ins]) => { all.get(n).in = ins; if (k === last) all.get(n).kind = 'wired'; });
  });
  return [...live].map(n => all.get(n));
}
function passNodes(at) {
  const all = frame(at), source = new Map(all.filter(v => v.op === 'const' || v.op === 'state').map(v => [v.n, v.name])), shown = all.filter(v => !source.has(v.n) || v.kind), of = new Map(shown.map((v, i) => [v.n, i])), E = [];
  shown.forEach((v, b) => new Set(v.in).forEach(a => of.has(a) && E.push({ a: of.get(a), b })));
  return [shown.map(v => { const id = LAST.get(v.n), k = id && V.get(id).kernel, reads = v.in.map(n => source.get(n)).filter(x => x);
    return { key: 'n' + v.n, w: 158, h: 40, kind: v.kind, plain: true, to: id ? { value: id } : { gone: v }, rows: [(v.op === 'input' ? v.name : v.op) + (k !== undefined ? `  → kernel ${k}` : ''), reads.length ? clip(reads[0], 14) + ' ' + v.shape.replace(/^\w+/, '') : v.shape] }; }), E];
}
function showFrame(at) {
  const n = P ? P.passes.length : 0, p = P && at > 0 && at <= n && P.passes[at - 1];
  if ($('pass')) $('pass').value = at;
  view.at = at;
  fill('passtext', at > n ? 'After: kernels. Blue boxes are several operations in one kernel.' : !p ? `Before: ${count(P.given.length, 'value')} as given.`
    : [h('b', {}, `Pass ${at} of ${n}, ${p.pass}: `), `${p.doc}. `, h('span', { class: 'good' }, `${p.added.length} added`), ', ', h('span', { class: 'bad' }, `${p.removed.length} removed`), `, ${p.rewired.length} connected otherwise.`]);
  drawGraph();
  reveal($('canvas').querySelector(p ? '.new, .gone, .wired' : '.on, .node'));
}
function drawGraph() {
  const [N, E] = P && view.at <= P.passes.length ? passNodes(view.at) : kernelNodes();
  if (X.short || N.length > 900) return fill('canvas', h('p', { class: 'what', style: 'padding:12px' }, `With ${count(X.n_values, 'value')} and ${count(X.n_kernels, 'kernel')} the graph is too large to draw. `,
    X.short ? `This page has its sums and the ${K.length} kernels that take longest; “tenon explain ${D.programs[0].spec}” prints all.` : 'The tables below have its kernels and reasons; other passes may be smaller.'));
  const room = $('canvas').clientWidth, size = view.size = layout(N, E);
  fill('canvas', h('svg', { viewBox: `0 0 ${size.width} ${size.height}`, role: 'group' },
    E.map(e => h('path', { class: 'edge', d: e.d, 'data-edge': e.edge }, e.edge !== undefined && h('title', {}, edgeText(X.edges[e.edge])))), N.map(nodeView)));
  zoom(view.zoom ? 1 : 0, room);
}
const edgeText = e => `${long(e.value)}: ${bytes(e.bytes)} from kernel ${e.from} to kernel ${e.to}. ${reason(e.decision)}`;
function zoom(step, room) {
  const box = $('canvas'), svg = box.querySelector('svg');
  if (!svg) return;
  const fit = Math.min(1, ((room ?? box.clientWidth) - 4) / view.size.width);
  view.zoom = step === 0 ? Math.max(fit, 0.8) : Math.min(3, Math.max(0.1, view.zoom * step));
  if (step === 'fit') view.zoom = fit;
  Object.assign(svg.style, { width: view.size.width * view.zoom + 'px', height: view.size.height * view.zoom + 'px' });
}
const reveal = node => node && requestAnimationFrame(() => { // when all is in its place
  const box = $('canvas'), a = node.getBoundingClientRect(), b = box.getBoundingClientRect();
  if (a.top < b.top || a.bottom > b.bottom || a.left < b.left || a.right > b.right) box.scrollBy({ left: a.left - b.left - b.width / 2 + a.width / 2, top: a.top - b.top - b.height / 3 });
});
function find(text) {
  const t = text.trim().toLowerCase(), nodes = [...$('canvas').querySelectorAll('.node')];
  const hit = n => { const k = n.dataset.key; if (k[0] === 'n') return n.textContent.toLowerCase().includes(t); return k[0] === 'k' ? (kname(+k.slice(1)) + K[+k.slice(1)].values.map(v => long(v.id)).join(' ')).toLowerCase().includes(t) : long(+k.slice(1)).toLowerCase().includes(t); };
  nodes.forEach(n => n.classList.toggle('hit', t !== '' && hit(n)));
  const hits = nodes.filter(n => n.classList.contains('hit'));
  fill('found', t ? `${hits.length} found` : '');
  reveal(hits[0]);
}
function graphTools() {
  const button = (text, label, f) => h('button', { class: 'do', type: 'button', 'aria-label': label, onclick: f }, text);
  fill('graphtools', h('input', { type: 'search', placeholder: 'Find a value or op', 'aria-label': 'Find in the graph', oninput: e => find(e.target.value) }), h('span', { id: 'found', class: 'soft' }),
    button('+', 'Larger', () => zoom(1.25)), button('−', 'Smaller', () => zoom(0.8)), button('Fit', 'Fit the width', () => zoom('fit')),
    P && [button('As given', 'Show the graph as given', () => showFrame(0)), button('‹', 'The pass before', () => showFrame(Math.max(0, view.at - 1))),
      h('input', { type: 'range', id: 'pass', min: 0, max: P.passes.length + 1, step: 1, 'aria-label': 'Pass by pass, from the graph as given to kernels', oninput: e => showFrame(+e.target.value) }),
      button('›', 'The next pass', () => showFrame(Math.min(P.passes.length + 1, view.at + 1))), button('Kernels', 'Show the kernels', () => showFrame(P.passes.length + 1))],
    h('span', { id: 'passtext', class: 'soft' }));
}

/* ---- what is selected ---- */
function place(v) {
  const b = B.get(v.buffer);
  if (v.op === 'input') return 'In the caller’s memory: an input.';
  if (b) return [`In memory, ${bytes(b.bytes)} at offset ${b.offset.toLocaleString('en')} of ${SLOTS[b.slot]}`,
    b.first !== undefined ? `; the place is needed from kernel ${b.first} to kernel ${b.last}, then others have it` : '', b.in_place_of !== undefined ? '; it takes over the place of a value that is used up' : '', '.'];
  if (v.buffer !== undefined) return 'In the caller’s memory: an output.';
  if (v.kernel !== undefined) return ['Nowhere in memory: it exists only inside of ', v.kernels > 1 ? `${v.kernels} kernels, each of which computes it again` : kernelLink(v.kernel), ', in registers or the nearest cache.'];
  return v.op === 'const' ? 'In the instructions of the kernels that use it.' : 'Nowhere: its readers compute it from the indices.';
}
function valueDetail(id) {
  const v = V.get(id), mine = X.decisions.filter(d => d.value === id), trips = X.edges.filter(e => e.value === id), read = users.get(id) || [];
  return [h('h3', {}, long(id)), h('p', {}, place(v)), v.kernel !== undefined && v.buffer !== undefined && h('p', {}, 'Made by ', kernelLink(v.kernel), '.'),
    h('p', {}, 'Computed from: ', (v.in || []).length ? list(v.in.filter(i => V.has(i)), valueLink) : 'nothing', '. Read by: ', read.length ? list(read.slice(0, 12), valueLink) : 'nothing in the graph', read.length > 12 && ` and ${read.length - 12} more`, '.'),
    h('h3', {}, 'Why'), mine.length ? h('ul', {}, mine.map(d => h('li', {}, h('b', { class: d.fused ? 'good' : 'bad' }, d.fused ? 'fused: ' : 'not fused: '), d.reason, d.with ? [' (with ', valueLink(d.with), ')'] : '', !d.fused && hint(d.reason) ? h('div', { class: 'soft' }, hint(d.reason)) : ''))) : h('p', {}, 'The compiler had nothing to decide about it.'),
    v.stored_us && h('p', {}, h('b', {}, 'Otherwise: '), `stored, it would be ${bytes(v.bytes)} written and read again${v.kernels > 1 ? ' in each of ' + v.kernels + ' kernels' : ''}, about ${time(v.stored_us)} a run.`),
    trips.length > 0 && h('p', {}, h('b', {}, 'What it costs: '), `${bytes(trips[0].bytes)} written once and read by `, list([...new Set(trips.map(e => e.to))], i => go({ kernel: i }, 'kernel ' + i)), `; about ${time(trips.reduce((s, e) => Math.max(s, e.us), 0))} for each that fusing would save at most.`)];
}
function kernelDetail(i) {
  const k = K[i], trip = (e, other) => h('li', {}, go({ kernel: other }, 'kernel ' + other), ', ', valueLink(e.value), ` (${bytes(e.bytes)}): ${reason(e.decision)}`);
  return [h('h3', {}, kname(i)), h('p', {}, `Predicted ${time(k.predicted_us)}, ${percent(k.predicted_us / ALL)} of the run, bound by ${k.predicted_bound}${k.parallel ? '; split over threads' : ''}${k.code !== k.kernel ? `; the code of kernel ${k.code}` : ''}.`),
    h('p', {}, `${three(k.flops / 1e3)} kflop; reads ${bytes(k.bytes_read)}, writes ${bytes(k.bytes_written)}. It moves`),
    h('table', {}, LEVELS.map(l => h('tr', {}, h('td', {}, l[1]), h('td', { class: 'n' }, bytes(k.level_bytes[l[0]]), k.counted_bytes && h('div', { class: 'soft' }, beside(k.level_bytes[l[0]], k.counted_bytes[l[0]])))))),
    k.not_counted && h('p', { class: 'soft' }, `Not counted in the simulated caches: ${k.not_counted}.`),
    !X.short && h('p', {}, 'Computes: ', list(k.values, v => go({ value: v.id }, v.op)), '.'),
    k.in_place.length > 0 && h('p', {}, 'In place: ', list(k.in_place, p => [valueLink(p.value), ' over ', valueLink(p.over)]), '.'),
    !X.short && h('p', {}, h('a', { href: '#code', onclick: () => showCode(i) }, 'Its schedule and code')),
    into[i].length > 0 && [h('h3', {}, 'Reads from other kernels, not fused because'), h('ul', {}, into[i].map(e => trip(e, e.from)))],
    outof[i].length > 0 && [h('h3', {}, 'Read by other kernels, not fused because'), h('ul', {}, outof[i].map(e => trip(e, e.to)))]];
}
const goneBy = n => { const p = P.passes.find(p => p.removed.includes(n)); return p ? `${p.pass} (${p.doc})` : 'nothing needs it'; };
function select(to, scroll) {
  const i = to.kernel !== undefined ? to.kernel : (V.get(to.value) || {}).kernel;
  fill('detail', to.gone ? [h('h3', {}, `${to.gone.op} ${to.gone.shape}`), h('p', {}, `A pass removed it: ${goneBy(to.gone.n)}.`)] : to.kernel !== undefined ? kernelDetail(i) : valueDetail(to.value));
  document.querySelectorAll('.on').forEach(e => !e.closest('#codes') && e.classList.remove('on'));
  document.querySelectorAll(`[data-key="k${i}"], tr[data-k="${i}"], [data-key="v${to.value}"]`).forEach(e => e.classList.add('on'));
  X.edges.forEach((e, n) => { if (to.value !== undefined ? e.value === to.value : e.from === i || e.to === i) document.querySelectorAll(`[data-edge="${n}"]`).forEach(p => p.classList.add('on')); });
  if (scroll) $('graph').scrollIntoView();
  reveal($('canvas').querySelector(`[data-key="k${i}"], .node.on`));
  if (i !== undefined && K[i] && !X.short) showCode(i);
}

/* ---- reasons, kernels ---- */
function edges(text, most = 400) {
  const t = (text || '').trim().toLowerCase(), all = X.edges.slice().sort((a, b) => b.us - a.us).filter(e => !t || (edgeText(e) + K[e.from].name + K[e.to].name).toLowerCase().includes(t));
  fill('whycount', X.edges.length ? `${all.length} of ${X.edges.length}; all have a reason` : 'All is one kernel: nothing to ask.');
  fill('edges', h('tr', {}, ['From', 'To', 'Value', 'Bytes', 'Price', 'Not fused because'].map((x, i) => h('th', { class: i === 3 || i === 4 ? 'n' : '' }, x))),
    all.slice(0, most).map(e => h('tr', {}, h('td', {}, go({ kernel: e.from }, `${e.from} ${clip(K[e.from].name, 22)}`)), h('td', {}, go({ kernel: e.to }, `${e.to} ${clip(K[e.to].name, 22)}`)), h('td', {}, valueLink(e.value)),
      h('td', { class: 'n' }, bytes(e.bytes)), h('td', { class: 'n' }, time(e.us)), h('td', { title: hint(reason(e.decision)) }, reason(e.decision)))));
}
function kernels() {
  const most = f => Math.max(...K.map(f), 1e-9), meter = (x, max, text, c) => h('td', { class: 'n meter', style: `--w:${(100 * x / max).toFixed(1)}%;--c:var(${c})` }, text);
  const slow = most(k => k.predicted_us), work = most(k => k.flops), full = LEVELS.map(l => most(k => k.level_bytes[l[0]]));
  const measured = D.profile && D.profile.kernels, heads = ['', 'Kernel', 'Predicted', ...(measured ? ['Measured'] : []), 'Bound by', 'Arithmetic', ...LEVELS.map(l => l[1])];
  fill('table', h('tr', {}, heads.map((x, i) => h('th', { class: i > 1 && x !== 'Bound by' ? 'n' : '' }, x))), byTime.slice(0, 500).map(i => { const k = K[i];
    return h('tr', { 'data-k': i, onclick: () => select({ kernel: i }, false) }, h('td', { class: 'n' }, k.kernel), h('td', {}, go({ kernel: i }, k.name), h('div', { class: 'soft' }, clip(k.values.filter(v => !VIEWS.has(v.op)).map(v => v.op).join(', ') + (params(k) && `; ${params(k)}`), 90))),
      meter(k.predicted_us, slow, time(k.predicted_us), '--bar'), measured && h('td', { class: 'n' }, time(measured[i].median_us)), h('td', {}, k.predicted_bound), meter(k.flops, work, three(k.flops / 1e3) + ' kflop', '--bar'),
      LEVELS.map((l, n) => meter(k.level_bytes[l[0]], full[n], [bytes(k.level_bytes[l[0]]), k.counted_bytes && h('div', { class: 'soft' }, beside(k.level_bytes[l[0]], k.counted_bytes[l[0]]))], l[2]))); }));
  const seen = K.filter(k => k.counted_bytes), near = seen.filter(k => Math.abs(k.level_bytes.memory - k.counted_bytes.memory) <= k.counted_bytes.memory / 10);
  fill('counted', seen.length ? `Below each prediction stands what was counted, access by access, in a simulation of the caches: ${count(seen.length, 'kernel')} of ${K.length}. Of these, what memory gives is within 10 % for ${near.length}.` : '');
}

/* ---- code ---- */
const FORMS = [['scalar', 'Loops, before the schedule'], ['kernels', 'Loops, as the schedule tiles them'], ['c', 'C'], ['x86', 'Machine code'], ['cuda', 'CUDA C'], ['opencl', 'OpenCL C']];
const codes = K.map((k, i) => i).filter(i => K[i].code === i), shown = new Set(['kernels', 'c', 'x86', 'cuda', 'opencl']);
function showCode(i) {
  const at = codes.indexOf(K[i].code), forms = FORMS.filter(f => T[f[0]] && T[f[0]][at] !== undefined), open = forms.filter(f => shown.has(f[0]));
  const registers = line => (line.match(/^\s*(?:update )?%\d+|\bv\d+/g) || []).slice(0, 1).map(x => x.match(/\d+/)[0]).join();
  fill('codetools', h('label', {}, 'Kernel ', h('select', { 'aria-label': 'Kernel', onchange: e => showCode(+e.target.value) }, codes.map(c => h('option', { value: c, selected: c === K[i].code }, kname(c))))),
    forms.map(f => h('button', { class: 'do', type: 'button', 'aria-pressed': String(shown.has(f[0])), onclick: () => { shown.has(f[0]) ? shown.delete(f[0]) : shown.add(f[0]); showCode(i); } }, f[1])));
  fill('schedule', K[i].schedule ? [h('b', {}, 'Schedule: '), h('code', {}, K[i].schedule.join('; '))] : '', K[i].tuned ? ' (measured by tuning)' : '');
  $('codes').style.setProperty('--n', Math.max(1, open.length));
  fill('codes', open.map(f => h('div', {}, h('h3', {}, f[1]), h('pre', { tabindex: 0, 'aria-label': f[1] }, T[f[0]][at].split('\n').map(l => h('span', { 'data-r': f[0] === 'x86' ? null : registers(l) }, l || ' '))))));
}
function follow(e) {
  const r = e.target.dataset && e.target.dataset.r;
  $('codes').querySelectorAll('.on').forEach(l => l.classList.remove('on'));
  if (r) $('codes').querySelectorAll(`[data-r="${r}"]`).forEach(l => l.classList.add('on'));
}

/* ---- plots: an axis maps data to pixels ---- */
function axis(lo, hi, from, to, log) { const f = log ? Math.log10 : x => x; return x => from + (f(x) - f(lo)) / (f(hi) - f(lo) || 1) * (to - from); }
const ticks = (lo, hi, n) => { const raw = (hi - lo) / n || 1, p = 10 ** Math.floor(Math.log10(raw)), step = [1, 2, 5, 10].find(s => s * p >= raw) * p, out = [];
  for (let x = Math.ceil(lo / step) * step; x <= hi * 1.0001; x += step) out.push(x); return out; };
const decades = (lo, hi) => { const out = []; for (let e = Math.floor(Math.log10(lo)); 10 ** e <= hi; e++) if (10 ** e >= lo) out.push(10 ** e); return out; };
const label = (x, y, text, attrs) => h('text', { x, y, ...attrs }, text);
const hline = (x0, x1, y, c) => h('line', { x1: x0, x2: x1, y1: y, y2: y, class: c || 'grid' }), vline = (x, y0, y1, c) => h('line', { x1: x, x2: x, y1: y0, y2: y1, class: c || 'grid' });
const picture = (w, t, text, ...kids) => h('svg', { viewBox: `0 0 ${w} ${t}`, role: 'img', 'aria-label': text }, kids);
const BOUND = b => b === 'arithmetic' ? '--l2' : /memory|cache|L2|L3/i.test(b) ? '--memory' : '--l3';

function roofline() {
  const C = D.ceilings, top = C ? C.gflops : X.machine.gflops, W = 980, H = 430, x0 = 70, x1 = 770, y0 = 370, y1 = 20;
  const roofs = C ? C.levels.map(l => [l.level, l.gbs]) : X.machine.levels.map(l => [l.level, l.gbs]), dots = [];
  K.forEach((k, i) => { const moved = k.bytes_read + k.bytes_written, us = D.profile && D.profile.kernels[i].median_us;
    if (k.flops && moved && k.predicted_us) dots.push({ i, x: k.flops / moved, y: k.flops / k.predicted_us / 1e3, m: us ? k.flops / us / 1e3 : 0, r: 4 + 14 * Math.sqrt(k.predicted_us / ALL) }); });
  if (!dots.length) return fill('roof', 'No kernel has arithmetic.');
  const xs = dots.map(d => d.x), ys = dots.flatMap(d => [d.y, d.m || d.y]), lox = Math.min(...xs, 0.05) / 1.6, hix = Math.max(...xs, 30) * 1.6, loy = Math.min(...ys) / 2, hiy = Math.max(top, ...ys) * 2.2;
  const fx = axis(lox, hix, x0, x1, true), fy = axis(loy, hiy, y0, y1, true), big = dots.slice().sort((a, b) => b.r - a.r).slice(0, 8).sort((a, b) => (b.m || b.y) - (a.m || a.y));
  let below = 0;
  const free = y => (below = Math.max(y, below + 16));
  const roof = ([level, gbs], n) => { const from = Math.max(lox, loy / gbs), to = Math.min(hix, top / gbs); if (to <= from) return null;
    const angle = -Math.atan2(fy(gbs * from) - fy(gbs * to), fx(to) - fx(from)) * 180 / Math.PI, at = 10 ** (Math.log10(from) + 0.12 * (Math.log10(to) - Math.log10(from)) + 0.02 * n), px = fx(at), py = fy(at * gbs) - 5;
    return [h('line', { x1: fx(from), y1: fy(gbs * from), x2: fx(to), y2: fy(gbs * to), style: `stroke:var(--${level});stroke-width:2` }),
      label(px, py, `${level === 'memory' ? 'memory' : level.toUpperCase()} ${three(gbs)} GB/s`, { transform: `rotate(${angle.toFixed(1)} ${px.toFixed(1)} ${py.toFixed(1)})`, style: 'font-size:11px' })]; };
  fill('roof', picture(W, H, 'Roofline', decades(lox, hix).map(t => [vline(fx(t), y0, y1), label(fx(t), y0 + 17, three(t), { 'text-anchor': 'middle', class: 'soft' })]),
    decades(loy, hiy).map(t => [hline(x0, x1, fy(t)), label(x0 - 8, fy(t) + 4, three(t), { 'text-anchor': 'end', class: 'soft' })]),
    label((x0 + x1) / 2, H - 14, 'arithmetic for each byte read or written at the kernel’s border (flop/byte)', { 'text-anchor': 'middle' }), label(18, (y0 + y1) / 2, 'speed (GFLOP/s)', { 'text-anchor': 'middle', transform: `rotate(-90 18 ${(y0 + y1) / 2})` }),
    hline(fx(Math.max(lox, top / Math.max(...roofs.map(r => r[1])))), x1, fy(top), 'axis'), h('line', { x1: fx(Math.max(lox, top / Math.max(...roofs.map(r => r[1])))), x2: x1, y1: fy(top), y2: fy(top), style: 'stroke:var(--text);stroke-width:2' }),
    label(fx(Math.max(lox, top / Math.max(...roofs.map(r => r[1])))) + 4, fy(top) - 7, `arithmetic ${three(top)} GFLOP/s`, { style: 'font-size:11px' }), roofs.map(roof),
    dots.map(d => h('g', { class: 'node', tabindex: 0, role: 'button', 'aria-label': `${kname(d.i)}: ${three(d.y)} GFLOP/s`, onclick: () => select({ kernel: d.i }, true), onkeydown: enter },
      d.m ? [vline(fx(d.x), fy(d.y), fy(d.m), 'axis'), h('circle', { cx: fx(d.x), cy: fy(d.m), r: d.r, style: 'fill:var(--l2);fill-opacity:.75' })] : null,
      h('circle', { cx: fx(d.x), cy: fy(d.y), r: d.r, style: d.m ? 'fill:none;stroke:var(--text);stroke-dasharray:3 2' : 'fill:var(--l2);fill-opacity:.65;stroke:var(--bg)' }), h('title', {}, `${kname(d.i)}: ${three(d.x)} flop/byte, predicted ${three(d.y)} GFLOP/s${d.m ? `, measured ${three(d.m)}` : ''}`))),
    big.map(d => { const y = free(fy(d.m || d.y)); return [h('path', { d: `M${fx(d.x)} ${fy(d.m || d.y)}L${x1 + 14} ${y}`, class: 'edge' }), label(x1 + 18, y + 4, clip(`${K[d.i].kernel} ${K[d.i].name}`, 26))]; })));
  fill('roofkey', C ? `Ceilings measured on this machine with ${count(C.threads, 'thread')} (${C.cpu}).` : `Ceilings by the machine model’s row “${X.machine.title}”.`, ' The area of a dot is its share of the time; ',
    D.profile ? 'filled dots are measured, dashed ones predicted.' : 'its height is the predicted speed.', K.length > dots.length ? ` ${count(K.length - dots.length, 'kernel')} without arithmetic (copies, pads) ${K.length - dots.length > 1 ? 'are' : 'is'} not shown.` : '');
}
function timeline() {
  const rows = Math.min(8, Math.max(1, GPU ? 1 : X.threads)), W = 900, x0 = 90, x1 = 880, strips = [['predicted', K.map(k => k.predicted_us)]];
  if (D.profile) strips.push(['measured', D.profile.kernels.map(k => k.median_us)]);
  const longest = Math.max(...strips.map(s => s[1].reduce((a, b) => a + b, 0)), 1e-9), fx = axis(0, longest, x0, x1), tall = 22 * rows + 34, H = strips.length * tall + 40, parts = [];
  strips.forEach(([what, us], n) => {
    let at = 0;
    parts.push(label(x0, n * tall + 16, `${what}: ${time(us.reduce((a, b) => a + b, 0))}`, { style: 'font-weight:600' }));
    for (let r = 0; r < rows; r++) parts.push(label(x0 - 8, n * tall + 38 + 22 * r, GPU ? 'device' : `thread ${r}`, { 'text-anchor': 'end', class: 'soft' }));
    us.forEach((t, i) => { const w = fx(at + t) - fx(at), own = K[i].parallel || GPU ? rows : 1;
      parts.push(h('g', { class: 'node', onclick: () => select({ kernel: i }, true) }, h('rect', { x: fx(at), y: n * tall + 24, width: Math.max(0.4, w - 0.6), height: 22 * own - 3, style: `fill:var(${BOUND(K[i].predicted_bound)});fill-opacity:.45;stroke:none` }), h('title', {}, `${kname(i)}: ${time(t)}, bound by ${K[i].predicted_bound}`),
        w > 60 && label(fx(at) + 5, n * tall + 39, clip(`${i} ${K[i].name}`, Math.floor(w / 7.5)))));
      at += t; });
  });
  fill('time', picture(W, H, 'Time line of a run', ticks(0, longest, 8).map(t => [vline(fx(t), 22, H - 34), label(fx(t), H - 20, time(t), { 'text-anchor': 'middle', class: 'soft' })]), parts, label((x0 + x1) / 2, H - 3, 'time from the begin of a run', { 'text-anchor': 'middle' })));
}
function memory() {
  const temps = X.buffers.filter(b => b.slot === 0), W = 900, H = 380, x0 = 90, x1 = 870, y0 = 320, y1 = 24, top = Math.max(X.arena_bytes, 1), fx = axis(0, Math.max(1, K.length), x0, x1), fy = axis(0, top * 1.06, y0, y1);
  const others = ['state_bytes', 'const_bytes', 'scratch_bytes'].map((k, i) => [['states', 'constants', 'scratch of the threads'][i], X[k]]);
  fill('memtext', temps.length ? `${count(temps.length, 'temporary').replace('temporarys', 'temporaries')} need ${bytes(temps.reduce((s, b) => s + b.bytes, 0))} one beside the other; planned, ${bytes(X.arena_bytes)} are enough (lower bound ${bytes(X.arena_bound)}). ` : 'This program stores no temporaries. ', 'Beside them: ' + others.map(o => `${o[0]} ${bytes(o[1])}`).join(', ') + '.');
  if (!temps.length) return fill('memory', '');
  const unit = top >= 1 << 20 ? [1 << 20, 'MiB'] : top >= 1024 ? [1024, 'KiB'] : [1, 'B'], hue = ['--l1', '--l2', '--l3', '--good'];
  fill('memory', picture(W, H, 'Memory plan', ticks(0, top / unit[0], 6).map(t => [hline(x0, x1, fy(t * unit[0])), label(x0 - 8, fy(t * unit[0]) + 4, three(t), { 'text-anchor': 'end', class: 'soft' })]),
    ticks(0, K.length, Math.min(12, K.length)).filter(t => Number.isInteger(t)).map(t => label(fx(t), y0 + 16, t, { 'text-anchor': 'middle', class: 'soft' })),
    temps.map((b, n) => { const w = fx(b.last + 1) - fx(b.first), t = Math.max(1, fy(b.offset) - fy(b.offset + b.bytes));
      return h('g', { class: 'node', tabindex: 0, role: 'button', 'aria-label': `${long(b.value)}, ${bytes(b.bytes)}`, onclick: () => select({ value: b.value }, true), onkeydown: enter },
        h('rect', { x: fx(b.first), y: fy(b.offset + b.bytes), width: Math.max(1, w), height: t, style: `fill:var(${hue[n % 4]});fill-opacity:.55;stroke:var(--bg)${b.in_place_of !== undefined ? ';stroke:var(--text);stroke-dasharray:4 2' : ''}` }), h('title', {}, `${long(b.value)}: ${bytes(b.bytes)} at ${b.offset}, kernels ${b.first} to ${b.last}${b.in_place_of !== undefined ? ', in place' : ''}`),
        w > 46 && t > 13 && label(fx(b.first) + 4, fy(b.offset + b.bytes / 2) + 4, clip(name(b.value), Math.floor(w / 8)))); }),
    h('line', { x1: x0, x2: x1, y1: fy(X.arena_bound), y2: fy(X.arena_bound), style: 'stroke:var(--memory);stroke-width:1.5;stroke-dasharray:6 4' }), label(x1, fy(X.arena_bound) - 5, `lower bound ${bytes(X.arena_bound)}`, { 'text-anchor': 'end' }),
    label((x0 + x1) / 2, H - 12, 'kernel, in the order of the launches', { 'text-anchor': 'middle' }), label(20, (y0 + y1) / 2, `place in the arena (${unit[1]})`, { 'text-anchor': 'middle', transform: `rotate(-90 20 ${(y0 + y1) / 2})` })));
}

/* ---- other programs beside this one ---- */
function versus(a, b, names) {
  const change = (x, y) => x === y ? 'the same' : !x ? '' : h('span', { class: y < x ? 'good' : 'bad' }, (y / x < 2 && y / x > 0.5 ? (y > x ? '+' : '−') + percent(Math.abs(y - x) / x) : y > x ? `${three(y / x)} times` : `1/${three(x / y)}`));
  const rows = [['Predicted time', 'predicted_us', time], ['Kernels', 'n_kernels', x => x], ['Read at kernel borders', 'bytes_read', bytes], ['Written', 'bytes_written', bytes], ['Arithmetic', 'flops', x => three(x / 1e6) + ' Mflop'], ['Temporaries', 'arena_bytes', bytes], ['States', 'state_bytes', bytes]];
  const best = x => x.kernels.slice().sort((p, q) => q.predicted_us - p.predicted_us).slice(0, 10), pair = [best(a), best(b)];
  return [h('div', { class: 'scroll', tabindex: 0 }, h('table', {}, h('tr', {}, ['', ...names, 'Change'].map((x, i) => h('th', { class: i ? 'n' : '' }, x))), rows.map(r => h('tr', {}, h('td', {}, r[0]), h('td', { class: 'n' }, r[2](a[r[1]])), h('td', { class: 'n' }, r[2](b[r[1]])), h('td', { class: 'n' }, change(a[r[1]], b[r[1]])))))),
    h('div', { class: 'codes', style: '--n:2' }, pair.map((ks, n) => h('div', {}, h('h3', {}, `${names[n]}: the kernels that take longest`), h('table', {}, ks.map(k => h('tr', {}, h('td', {}, `${k.kernel} ${k.name}`), h('td', { class: 'n meter', style: `--w:${(100 * k.predicted_us / pair[0].concat(pair[1]).reduce((m, q) => Math.max(m, q.predicted_us), 1e-9)).toFixed(1)}%` }, time(k.predicted_us)), h('td', {}, k.predicted_bound)))))))];
}
function whatIf() {
  const groups = [...new Set((D.variants || []).map(v => v.group))], other = D.programs[1];
  const row = (v, most) => h('tr', { 'data-v': v.label }, h('td', {}, h('button', { class: 'link', type: 'button', onclick: () => fill('versus', h('h3', {}, `This program beside: ${v.label}`), versus(X, v.explain, ['this program', v.label])) }, v.label)), h('td', { class: 'n' }, v.explain.n_kernels),
    h('td', { class: 'n meter', style: `--w:${(100 * v.explain.predicted_us / most).toFixed(1)}%` }, time(v.explain.predicted_us)), v.group === 'Batch' && h('td', { class: 'n' }, time(v.explain.predicted_us / v.label.match(/\d+/)[0])), h('td', { class: 'n' }, bytes(v.explain.bytes_read + v.explain.bytes_written)), h('td', { class: 'n' }, bytes(v.explain.arena_bytes)));
  fill('groups', groups.map(g => { const of = D.variants.filter(v => v.group === g), most = Math.max(...of.map(v => v.explain.predicted_us), 1e-9);
    return h('div', {}, h('h3', {}, g), h('div', { class: 'wide', tabindex: 0 }, h('table', {}, h('tr', {}, ['', 'Kernels', 'Predicted', ...(g === 'Batch' ? ['for one of it'] : []), 'Traffic', 'Temporaries'].map((x, i) => h('th', { class: i ? 'n' : '' }, x))), of.map(v => row(v, most))))); }));
  if (!groups.length) $('whatif').remove();
  if (other) fill('pair', versus(X, other.explain, [D.programs[0].spec, other.spec])); else $('against').remove();
}

/* ---- all of it ---- */
if (X.short) ['why', 'code', 'timeline', 'plan'].forEach(id => $(id).remove());
graphTools(), showFrame(view.at); // before there is much else to be placed
if (!X.short) { edges('', 40); setTimeout(() => $('whyfind').value || edges('')); timeline(); memory(); $('whyfind').addEventListener('input', e => edges(e.target.value)); $('codes').addEventListener('pointerover', follow); }
[summary, roofline, whatIf, kernels].forEach(draw => draw());
fill('menu', [...document.querySelectorAll('section')].map(s => h('a', { href: '#' + s.id }, s.dataset.menu)));
if (K.length) select({ kernel: view.first }, false);
fill('foot', `Written by tenon ${D.tenon}. The data of this page is the JSON of “tenon explain ${D.programs[0].spec} --json”; nothing is loaded from elsewhere.`);
