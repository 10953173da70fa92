// The connection to the server, and what the page says while it is broken; or the recording that is shown.

import {replace, text} from './dom.js';
import {count, plural, span, time} from './format.js';
import {blank} from './lists.js';
import {Player} from './player.js';
import {ask, follow, session} from './stream.js';

const $ = (id) => document.getElementById(id);

export class Connection {
  // changed is called when the state of the connection has changed.
  constructor(store, strip, changed) {
    Object.assign(this, {store, strip, changed, cluster: '', connected: false, watches: null, heard: 0, since: 0, gone: 0});
    // Login is offered rather than begun: what is typed stays until the reader leaves the page, whose address leads back to it.
    session.addEventListener('gone', () => { this.gone ||= Date.now(); this.#offerLogin(); });
    session.addEventListener('open', () => {
      if (!this.gone) return;
      this.gone = 0;
      $('notice').hidden = true;
      this.#offerLogin();
    });
    $('login').addEventListener('click', () => location.reload());
  }

  #offerLogin() {
    $('login').hidden = !this.gone;
    if (!this.gone) return;
    $('notice').hidden = false;
    this.#say(this.gone, 'The session has ended, as after a restart of berth with another token.');
  }

  show() {
    const {store, connected, watches} = this, box = $('status');
    const lost = Object.entries(watches?.lost || {}), blind = lost.some(([what]) => what === 'nodes' || what === 'pods');
    const state = !connected ? (store.summary ? 'lost' : 'connecting') : !watches?.listed ? 'reading' : blind ? 'lost' : 'live';
    box.dataset.state = state;
    text(box, {lost: connected ? 'Watch interrupted' : 'Connection lost', connecting: 'Connecting', reading: `Reading ${count(watches?.read || 0)}`, live: 'Live'}[state]);
    const out = !connected && store.summary ? 'berth' : connected && lost.length ? 'cluster' : '';
    $('notice').hidden = !out;
    if (out === 'berth') this.#say(this.heard, 'The connection to berth is lost. The page may be outdated; it reconnects automatically.');
    else if (out) this.#say(Math.min(...lost.map(([what]) => watches.since?.[what] || store.now())), lost.map(([what, why]) => `${what} cannot be watched: ${why}.`).join(' '));
    this.#offerLogin();
    this.changed();
    if (!store.summary) {
      $('blank').hidden = false;
      replace($('blank'), state === 'reading' ? blank('Reading the cluster', plural(watches?.read || 0, 'object') + ' so far') : blank('Connecting', 'to the server of this page'));
    }
  }

  // #say says what is not seen, and since when.
  #say(since, words) {
    this.since = since;
    text($('notice-words'), `Since ${time(since)}: ${words}`);
    this.tick();
  }

  tick() {
    if (!$('notice').hidden && this.store.frozen === null) text($('notice-age'), `(${span(Date.now() - this.since)})`);
  }

  // begin follows the live cluster, or opens the recording that is shown in its place.
  async begin() {
    let about;
    for (let wait = 500; !about; wait = Math.min(2 * wait, 10000)) {
      about = await ask('/api/about').catch(() => null);
      if (!about) await new Promise((done) => setTimeout(done, wait));
    }
    this.cluster = about.cluster.replace(/^https?:\/\//, '');
    text($('where'), this.cluster);
    this.changed();
    if (about.recording) this.#play(about.recording);
    else this.#follow();
  }

  #follow() {
    follow({
      onDelta: (delta) => this.store.apply(delta),
      onWatch: (watches) => { this.watches = watches; this.show(); },
      onBeat: (now) => this.store.tick(now),
      onStatus: (on, last) => {
        if (on === this.connected) return;
        Object.assign(this, {connected: on, heard: last || Date.now()});
        if (on) this.gone = 0;
        this.show();
      },
    });
  }

  #play(recording) {
    $('status').dataset.state = 'recording';
    text($('status'), 'Recording');
    const player = new Player($('player'), this.store, recording, {failed: (why) => {
      $('notice').hidden = !why;
      text($('notice-words'), why ? 'This time cannot be shown: ' + why : '');
      text($('notice-age'), '');
    }});
    this.strip.until = recording.until;
    this.strip.go = (at) => player.seek(at);
    this.strip.wide(recording.until - recording.from);
  }
}
