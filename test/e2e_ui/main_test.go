// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package e2e_ui

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/berth-k8s/berth/test/e2e_ui/stage"
	"github.com/berth-k8s/berth/test/internal/binaries"
)

// shared holds the fixtures of most tests: a browser, and a cluster of three nodes, which the first
// test that needs it starts.
var shared struct {
	browser *stage.Browser
	cluster *stage.Process
	started sync.Once
	bin     string
	dataDir string
}

// noBrowser is the reason why no browser is available, or "". If it is set, tests are skipped.
var noBrowser string

func TestMain(m *testing.M) {
	code, err := setUp(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func setUp(m *testing.M) (int, error) {
	path, err := stage.Chromium()
	if err != nil {
		noBrowser = err.Error()
		return m.Run(), nil
	}
	work, err := os.MkdirTemp("", "berth-ui-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(work)
	// The tests must not use the user's cluster or cache.
	os.Unsetenv("KUBECONFIG")
	os.Unsetenv("BERTH_DATA_DIR")
	os.Setenv("HOME", work)
	if shared.bin, err = binaries.BuildIn(work, "../.."); err != nil {
		return 0, err
	}
	browser, end, err := stage.Launch(path)
	if err != nil {
		return 0, err
	}
	defer end()
	shared.browser, shared.dataDir = browser, filepath.Join(work, "data")
	defer func() {
		if shared.cluster != nil {
			shared.cluster.Stop()
		}
	}()
	return m.Run(), nil
}

var desk = stage.View{Width: 1280, Height: 800}

// tab is a page under test. An error in one of its methods ends the test.
type tab struct {
	*stage.Page
	t *testing.T
}

// done closes the page, and fails the test if the page had errors.
func (p tab) done() {
	p.t.Helper()
	if faults := p.Faults(); len(faults) > 0 && !p.t.Failed() {
		p.t.Errorf("the page complains: %q", faults)
	}
	p.Forgive()
	p.Close()
}

// at appends a path, fragment or query to a page's URL, which already has a query with the token.
func at(url, rest string) string {
	if strings.HasPrefix(rest, "?") {
		return url + "&" + rest[1:]
	}
	return url + rest
}

// open opens a view of the page at url in a tab, and waits until it shows data.
func open(t *testing.T, url, hash string, v stage.View) tab {
	t.Helper()
	if noBrowser != "" {
		t.Skip(noBrowser)
	}
	p, err := shared.browser.Open(at(url, hash), v)
	// Chromium sometimes draws no frame of a new tab, and never will.
	for tries := 1; err == nil && tries < 3; tries++ {
		if drawn, _ := stage.Eval[bool](p, twoFrames); drawn {
			break
		}
		t.Log("no frame of the tab was drawn within 5 s: opening another one")
		p.Discard()
		p, err = shared.browser.Open(at(url, hash), v)
	}
	if err != nil {
		t.Fatal(err)
	}
	tb := tab{p, t}
	t.Cleanup(tb.done)
	tb.wait(`['live', 'recording'].includes(document.querySelector('#status').dataset.state) && document.querySelector('#summary b')`)
	return tb
}

// startCluster starts the shared cluster, unless an earlier test has done so.
func startCluster(t *testing.T) {
	t.Helper()
	if noBrowser != "" {
		t.Skip(noBrowser)
	}
	shared.started.Do(func() {
		var err error
		if shared.cluster, err = stage.Run(shared.bin, "up", "--data-dir", shared.dataDir, "--nodes", "3", "--ui-port", "0"); err != nil {
			t.Error(err)
		}
	})
	if shared.cluster == nil {
		t.FailNow()
	}
}

// ofCluster opens the page of the shared cluster.
func ofCluster(t *testing.T, hash string, v stage.View) tab {
	t.Helper()
	startCluster(t)
	return open(t, shared.cluster.URL, hash, v)
}

func (p tab) wait(expression string) {
	p.t.Helper()
	if err := p.Wait(expression); err != nil {
		p.t.Fatal(err)
	}
}

// shows waits until an element contains a text.
func (p tab) shows(selector, text string) {
	p.t.Helper()
	p.wait(fmt.Sprintf("document.querySelector(%q)?.textContent.includes(%q)", selector, text))
}

func (p tab) click(selector string) {
	p.t.Helper()
	if err := p.Click(selector); err != nil {
		p.t.Fatal(err)
	}
}

func (p tab) press(keys ...string) {
	p.t.Helper()
	if err := p.Press(keys...); err != nil {
		p.t.Fatal(err)
	}
}

func eval[T any](p tab, expression string) T {
	p.t.Helper()
	value, err := stage.Eval[T](p.Page, expression)
	if err != nil {
		p.t.Fatalf("%s: %v", expression, err)
	}
	return value
}

// twoFrames is a JavaScript promise for two frames, in which the page draws what has changed. It is
// kept with false after 5 s without them.
const twoFrames = `new Promise((done) => { setTimeout(done, 5000, false); requestAnimationFrame(() => requestAnimationFrame(() => done(true))); })`

// colour is a JavaScript function that returns the map's colour in a node's cell, at a point
// without text.
const colour = `(name => {
	const map = document.querySelector('#map').map, l = map.layout, cell = l.cells[l.index.get(name)];
	const y = cell.y - map.box.scrollTop + l.size.h / 2, x = l.size.kind === 'card' ? cell.x + 3 : cell.x + l.size.w / 2;
	return [...map.base.getContext('2d').getImageData(Math.round(x * map.ratio), Math.round(y * map.ratio), 1, 1).data].join(' ');
})`

func kubectl(t *testing.T, args ...string) string {
	t.Helper()
	startCluster(t)
	out, err := stage.Kubectl(shared.bin, shared.dataDir, "", args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func apply(t *testing.T, manifest string) {
	t.Helper()
	startCluster(t)
	if _, err := stage.Kubectl(shared.bin, shared.dataDir, manifest, "apply", "-f", "-"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := stage.Kubectl(shared.bin, shared.dataDir, manifest, "delete", "--wait=false", "--grace-period=0", "-f", "-"); err != nil && !strings.Contains(err.Error(), "not found") {
			t.Error(err)
		}
	})
}

func podManifest(name, rest string) string {
	return "apiVersion: v1\nkind: Pod\nmetadata: {name: " + name + "}\nspec:\n  containers: [{name: c, image: nginx, resources: {requests: {cpu: \"1\", memory: 1Gi}}}]\n" + rest + "---\n"
}
