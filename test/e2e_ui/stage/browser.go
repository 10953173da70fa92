// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package stage

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	cdppage "github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

//go:embed chromium.sh
var findChromium string

// Chromium returns the path of a Chromium. If none is found, it tries to install one. Errors
// suggest a remedy.
func Chromium() (string, error) {
	cmd := exec.Command("sh", "-c", findChromium)
	var complaint strings.Builder
	cmd.Stderr = &complaint
	out, err := cmd.Output()
	if err != nil {
		lines := strings.Split(strings.TrimSpace(complaint.String()), "\n")
		return "", errors.New(lines[len(lines)-1])
	}
	return strings.TrimSpace(string(out)), nil
}

// Browser is a headless Chromium with a separate profile.
type Browser struct {
	ctx context.Context

	mu   sync.Mutex
	idle []*browserTab
}

// Launch starts a browser. end stops it.
func Launch(path string) (b *Browser, end func(), err error) {
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.NoSandbox,
		chromedp.DisableGPU, chromedp.NoFirstRun)
	for _, flag := range []string{"disable-quic", "disable-background-networking", "disable-component-update",
		"disable-sync", "disable-dev-shm-usage"} {
		options = append(options, chromedp.Flag(flag, true))
	}
	// A tab's behaviour must not depend on which tab is on top.
	for _, flag := range []string{"disable-background-timer-throttling", "disable-backgrounding-occluded-windows",
		"disable-renderer-backgrounding"} {
		options = append(options, chromedp.Flag(flag, true))
	}
	options = append(options, chromedp.WSURLReadTimeout(time.Minute))
	ctx, endProcess := chromedp.NewExecAllocator(context.Background(), options...)
	ctx, endBrowser := chromedp.NewContext(ctx)
	end = func() { endBrowser(); endProcess() }
	if err := chromedp.Do(ctx); err != nil { // start the browser
		end()
		return nil, nil, fmt.Errorf("start %s: %w", path, err)
	}
	return &Browser{ctx: ctx}, end, nil
}

// View is a screen with its settings.
type View struct {
	Width, Height int64
	Dark          bool
	Scale         float64 // device pixels per page pixel; 0 means 1
}

// browserTab is a tab of the browser. A new tab is a process, which takes a second to start, so a
// closed page leaves its tab to the next one.
type browserTab struct {
	ctx context.Context
	end func()

	mu   sync.Mutex
	page *Page // receives the faults
}

// newTab opens an empty tab.
func newTab(ctx context.Context, closeTab context.CancelFunc) (*browserTab, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Hour)
	tab := &browserTab{ctx: ctx, end: func() { cancel(); closeTab() }}
	err := errors.Join(chromedp.Do(ctx), chromedp.Listen(ctx, tab.hear), call(ctx, log.Enable, cdp.Empty{}))
	if err != nil {
		tab.end()
		return nil, fmt.Errorf("open a tab: %w", err)
	}
	return tab, nil
}

// clear prepares a tab for another page: it keeps neither storage nor history.
func (tab *browserTab) clear() error {
	ctx, cancel := context.WithTimeout(tab.ctx, 10*time.Second)
	defer cancel()
	_, err := chromedp.Run(ctx, chromedp.Evaluate[bool]("(localStorage.clear(), sessionStorage.clear(), true)"))
	return errors.Join(err,
		call(ctx, network.ClearBrowserCookies, cdp.Empty{}),
		chromedp.Do(ctx, chromedp.Navigate("about:blank")),
		call(ctx, cdppage.ResetNavigationHistory, cdp.Empty{}))
}

// hear records exceptions and errors of the tab's page.
func (tab *browserTab) hear(event any) {
	tab.mu.Lock()
	p := tab.page
	tab.mu.Unlock()
	if p != nil {
		p.hear(event)
	}
}

// show sets the page of the tab.
func (tab *browserTab) show(p *Page) {
	tab.mu.Lock()
	defer tab.mu.Unlock()
	tab.page = p
}

// Page is a page in a tab of the browser.
type Page struct {
	ctx     context.Context
	close   func()
	altered bool // settings of the tab may have changed

	mu       sync.Mutex
	faults   []string
	forgiven bool
}

// Open opens an address in a tab with separate cookies and storage.
func (b *Browser) Open(address string, v View) (*Page, error) {
	b.mu.Lock()
	var tab *browserTab
	if last := len(b.idle) - 1; last >= 0 {
		tab, b.idle = b.idle[last], b.idle[:last]
	}
	b.mu.Unlock()
	if tab == nil {
		var err error
		if tab, err = newTab(chromedp.NewContext(b.ctx, chromedp.WithNewBrowserContext())); err != nil {
			return nil, err
		}
	}
	p := &Page{ctx: tab.ctx}
	p.close = sync.OnceFunc(func() {
		tab.show(nil)
		if p.altered || tab.clear() != nil {
			tab.end()
			return
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		b.idle = append(b.idle, tab)
	})
	tab.show(p)
	return p, p.load(address, v)
}

// Tab opens an address in another tab that shares cookies, storage and connections with this one.
func (p *Page) Tab(address string, v View) (*Page, error) {
	p.altered = true
	tab, err := newTab(chromedp.NewContext(p.ctx))
	if err != nil {
		return nil, err
	}
	other := &Page{ctx: tab.ctx, close: tab.end}
	tab.show(other)
	return other, other.load(address, v)
}

// load shows an address on a screen. The page is closed after an error.
func (p *Page) load(address string, v View) error {
	if v.Scale == 0 {
		v.Scale = 1
	}

	theme := "light"
	if v.Dark {
		theme = "dark"
	}

	err := errors.Join(
		call(p.ctx, cdppage.BringToFront, cdp.Empty{}),
		call(p.ctx, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{Width: v.Width,
			Height: v.Height, DeviceScaleFactor: v.Scale, Mobile: v.Width < 600}),
		call(p.ctx, emulation.SetEmulatedMedia,
			emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: theme}}}),
		p.navigate(address),
	)

	if err != nil {
		p.Discard()
		return fmt.Errorf("open %s: %w", address, err)
	}
	return nil
}

// networkChanged is the error with which the browser aborts requests when a network interface of
// the machine appears or disappears, for example for a container. It does not count as a fault.
const networkChanged = "net::ERR_NETWORK_CHANGED"

func (p *Page) navigate(address string) error {
	for tries := 1; ; tries++ {
		err := chromedp.Do(p.ctx, chromedp.Navigate(address))
		if err == nil || tries == 20 || !strings.Contains(err.Error(), networkChanged) {
			return err
		}
	}
}

func call[P, R any](ctx context.Context, command cdp.Command[P, R], params P) error {
	_, err := chromedp.Call(ctx, command, params)
	return err
}

// Call sends a command of the DevTools protocol.
func Call[P, R any](p *Page, command cdp.Command[P, R], params P) (R, error) {
	p.altered = true
	return chromedp.Call(p.ctx, command, params)
}

// Discard closes the page and its tab.
func (p *Page) Discard() {
	p.altered = true
	p.Close()
}

// Close closes the page.
func (p *Page) Close() { p.close() }

// hear records the page's exceptions and errors.
func (p *Page) hear(event any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.forgiven {
		return
	}
	switch e := event.(type) {
	case *runtime.EventExceptionThrown:
		text := e.ExceptionDetails.Text
		if e.ExceptionDetails.Exception != nil {
			text += " " + e.ExceptionDetails.Exception.Description
		}
		if !strings.Contains(text, "Failed to fetch dynamically imported module") { // possibly the same cause; the page reloads itself
			p.faults = append(p.faults, text)
		}
	case *log.EventEntryAdded:
		if e.Entry.Level == "error" && !strings.Contains(e.Entry.Text, networkChanged) {
			p.faults = append(p.faults, e.Entry.Text+" "+e.Entry.URL)
		}
	}
}

// Faults returns the exceptions and errors since the page was opened.
func (p *Page) Faults() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]string(nil), p.faults...)
}

// Eval evaluates a JavaScript expression in the page. If the result is a promise, Eval waits for
// its value.
func Eval[T any](p *Page, expression string) (T, error) {
	ctx, cancel := context.WithTimeout(p.ctx, time.Minute)
	defer cancel()
	return chromedp.Run(ctx, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
}

// patience limits the wait for an expected event. It is generous, because test machines may be
// slow.
const patience = 40 * time.Second

// Wait waits until a JavaScript expression is true.
func (p *Page) Wait(expression string) error { return p.WaitFor(expression, patience) }

// awaited is a JavaScript promise that is kept when an expression is true, or after a second. The
// page polls: hundreds of requests per second would keep the browser busy.
const awaited = `new Promise((done, fail) => {
	const end = Date.now() + 1000;
	const look = () => {
		try {
			const ok = Boolean(%s);
			if (ok || Date.now() >= end) done(ok); else setTimeout(look, 20);
		} catch (e) { fail(e); }
	};
	look();
})`

// WaitFor is Wait with another limit.
func (p *Page) WaitFor(expression string, patience time.Duration) error {
	deadline := time.Now().Add(patience)
	for {
		ok, err := Eval[bool](p, fmt.Sprintf(awaited, expression))
		if ok {
			return nil
		}
		if time.Now().After(deadline) {
			where, _ := Eval[string](p, "document.body.innerText.slice(0, 600)")
			failed := ""
			if err != nil {
				failed = " (" + err.Error() + ")"
			}
			return fmt.Errorf("not within %s: %s%s\nfaults: %q\npage: %s", patience, expression, failed, p.Faults(), where)
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-p.ctx.Done():
			return p.ctx.Err()
		}
	}
}

// Press presses keys one after the other. A key is a letter or a constant of package kb.
func (p *Page) Press(keys ...string) error {
	for _, key := range keys {
		if err := chromedp.Do(p.ctx, chromedp.KeyEvent(key)); err != nil {
			return err
		}
	}
	return nil
}

// Click waits for an element that matches a CSS selector, and clicks it.
func (p *Page) Click(selector string) error {
	if err := p.Wait(fmt.Sprintf("document.querySelector(%q)", selector)); err != nil {
		return err
	}
	_, err := Eval[bool](p, fmt.Sprintf("(document.querySelector(%q).click(), true)", selector))
	return err
}

// ClickAt clicks at a point of the page.
func (p *Page) ClickAt(x, y float64) error { return chromedp.Do(p.ctx, chromedp.MouseClickXY(x, y)) }

// Screenshot returns the visible page as PNG.
func (p *Page) Screenshot() ([]byte, error) { return chromedp.Run(p.ctx, chromedp.CaptureScreenshot()) }

// Forgive clears the recorded faults, and ignores all later ones. Tests that provoke errors call it
// at their end.
func (p *Page) Forgive() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.faults, p.forgiven = nil, true
}
