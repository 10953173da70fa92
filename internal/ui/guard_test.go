// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package ui

import (
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"testing"
)

const token = "secret-of-24-characters"

func guarded(names ...string) *guard {
	return &guard{token: token, cookie: "berth-ui-1", names: names, next: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "in") })}
}

func get(g http.Handler, path string, headers ...string) *http.Response {
	r := httptest.NewRequest(http.MethodGet, path, nil)
	r.Host = "127.0.0.1:8422"
	for i := 0; i < len(headers); i += 2 {
		if headers[i] == "Host" {
			r.Host = headers[i+1]
		}
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	g.ServeHTTP(w, r)
	return w.Result()
}

func TestOnlyNamesOfItsOwnAreServed(t *testing.T) {
	for _, c := range []struct {
		host   string
		served bool
	}{
		{"127.0.0.1:8422", true}, {"localhost:9000", true}, {"[::1]:8422", true}, {"127.0.0.1", true}, {"LocalHost", true}, {"[::1]", true},
		{"evil.example", false}, {"evil.example:8422", false}, {"localhost.evil.example", false}, {"127.0.0.1.evil.example:8422", false},
		{"", false}, {"10.0.0.7:8422", true}, {"ui.example.com", true},
	} {
		status := get(guarded("ui.example.com"), "/api/about", "Host", c.host, "Authorization", "Bearer "+token).StatusCode
		if served := status == http.StatusOK; served != c.served {
			t.Errorf("host %q: %d", c.host, status)
		}
	}
}

func TestOtherSitesAreRefused(t *testing.T) {
	for _, c := range []struct {
		path, header, value string
		served              bool
	}{
		{"/api/stream", "Origin", "http://127.0.0.1:8422", true},
		{"/api/stream", "Origin", "http://127.0.0.1:9999", false},
		{"/api/stream", "Origin", "https://127.0.0.1:8422", false},
		{"/api/stream", "Origin", "http://evil.example", false},
		{"/api/stream", "Origin", "null", false},
		{"/api/stream", "Sec-Fetch-Site", "cross-site", false},
		{"/api/stream", "Sec-Fetch-Site", "same-site", false},
		{"/api/stream", "Sec-Fetch-Site", "same-origin", true},
		{"/", "Sec-Fetch-Site", "none", true},
		{"/", "Sec-Fetch-Site", "cross-site", false}, // requested in a frame or by a script
	} {
		if status := get(guarded(), c.path, c.header, c.value, "Authorization", "Bearer "+token).StatusCode; (status == http.StatusOK) != c.served {
			t.Errorf("%s with %s: %s: %d", c.path, c.header, c.value, status)
		}
	}
	if status := get(guarded(), "/", "Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate", "Authorization", "Bearer "+token).StatusCode; status != http.StatusOK {
		t.Errorf("a link to the page: %d", status)
	}
}

func TestATokenIsNeededOnceAndThenACookie(t *testing.T) {
	g := guarded()
	for _, path := range []string{"/api/about", "/api/stream", "/main.js", "/?token=wrong", "/"} {
		if status := get(g, path).StatusCode; status != http.StatusUnauthorized {
			t.Errorf("%s without the token: %d", path, status)
		}
	}
	for _, header := range []string{"Bearer wrong", "Bearer ", "Basic secret-of-24-characters"} {
		if status := get(g, "/api/about", "Authorization", header).StatusCode; status != http.StatusUnauthorized {
			t.Errorf("%s: %d", header, status)
		}
	}
	in := get(g, "/?token="+g.token)
	if in.StatusCode != http.StatusSeeOther || in.Header.Get("Location") != "/" || len(in.Cookies()) != 1 {
		t.Fatalf("with the token: %d to %q", in.StatusCode, in.Header.Get("Location"))
	}
	if to := get(g, "/?colour=zone&token="+g.token+"&labels=a%3Db").Header.Get("Location"); to != "/?colour=zone&labels=a%3Db" {
		t.Errorf("what else the address says: %q", to)
	}
	cookie := in.Cookies()[0]
	if !cookie.HttpOnly || cookie.SameSite != http.SameSiteStrictMode || strings.Contains(cookie.Value, g.token) || cookie.Domain != "" {
		t.Errorf("%+v", cookie)
	}
	if status := get(g, "/api/about", "Cookie", cookie.Name+"="+cookie.Value).StatusCode; status != http.StatusOK {
		t.Errorf("with the cookie: %d", status)
	}
	another := guarded()
	another.token = "another"
	for _, forged := range []string{g.token, "", cookie.Value + "x", another.sessionCookie()} {
		if status := get(g, "/api/about", "Cookie", cookie.Name+"="+forged).StatusCode; status != http.StatusUnauthorized {
			t.Errorf("with the cookie %q: %d", forged, status)
		}
	}
}

func TestTheTokenCanBeEnteredInAForm(t *testing.T) {
	g := guarded()
	for token, want := range map[string]int{g.token: http.StatusSeeOther, "wrong": http.StatusUnauthorized} {
		r := httptest.NewRequest(http.MethodPost, "/?colour=zone", strings.NewReader(url.Values{"token": {token}}.Encode()))
		r.Host = "127.0.0.1:8422"
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		w := httptest.NewRecorder()
		if g.ServeHTTP(w, r); w.Code != want {
			t.Errorf("%s: %d", token, w.Code)
		}
		if refused := strings.Contains(w.Body.String(), `role="alert">That token is wrong`); refused != (want == http.StatusUnauthorized) {
			t.Errorf("%s: %s", token, w.Body)
		}
		if to := w.Header().Get("Location"); want == http.StatusSeeOther && to != "/?colour=zone" {
			t.Errorf("the rest of the address: %q", to)
		}
	}
}

func TestEveryAnswerForbidsMarkupOfOthers(t *testing.T) {
	for _, path := range []string{"/", "/api/about", "/nothing"} {
		h := get(guarded(), path).Header
		csp := h.Get("Content-Security-Policy")
		for _, want := range []string{"default-src 'none'", "script-src 'self'", "frame-ancestors 'none'", "base-uri 'none'", "require-trusted-types-for 'script'", "trusted-types 'none'"} {
			if !strings.Contains(csp, want) {
				t.Errorf("%s: no %s in %q", path, want, csp)
			}
		}
		if strings.Contains(csp, "unsafe") || strings.Contains(csp, "*") {
			t.Errorf("%s: %q", path, csp)
		}
		if h.Get("X-Content-Type-Options") != "nosniff" || h.Get("Referrer-Policy") != "same-origin" || h.Get("Cache-Control") != "no-store" {
			t.Errorf("%s: %v", path, h)
		}
	}
}

// TestThePageHasNothingInlineAndMakesNoMarkup verifies that the page contains nothing forbidden by
// the policy, which would fail only in the browser, and that it never converts text into markup.
func TestThePageHasNothingInlineAndMakesNoMarkup(t *testing.T) {
	inline := regexp.MustCompile(`(?i)<style|\sstyle=|\son[a-z]+=|<script(?: type="module" src="/[a-z]+\.js")?></script>|<script[^>]*>[^<]|javascript:|https?://[^w]`)
	markup := regexp.MustCompile(`innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|createContextualFragment|\beval\(|new Function|srcdoc`)
	err := fs.WalkDir(page, "page", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := page.ReadFile(path)
		if strings.HasSuffix(path, ".html") {
			allowed := strings.ReplaceAll(string(text), `<script type="module" src="/boot.js"></script>`, "")
			if found := inline.FindString(allowed); found != "" {
				t.Errorf("%s: %q", path, found)
			}
		}
		if found := markup.Find(text); found != nil {
			t.Errorf("%s: %q", path, found)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}
