package server

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/datadriven"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// The text cases: which log is shown, what is said where there is none, and which queries are
// refused.
func TestLogs(t *testing.T) {
	w := newWorld(t)
	for _, id := range []string{"c-app", "c-shell", "c-crashing-2", "c-restarted-1", "c-restarted-2", "c-init", "c-debug"} {
		w.log(t, id, "2026-11-20T14:00:01Z stdout F first of "+id+"\n2026-11-20T14:00:02Z stderr F second of "+id+"\n")
	}
	datadriven.RunTest(t, "testdata/logs.txt", func(t *testing.T, d *datadriven.TestData) string {
		out := w.direct("GET", "/containerLogs/"+d.Input, "good")
		return fmt.Sprintf("%d\n%s\n", out.Code, strings.TrimSpace(out.Body.String()))
	})
}

func TestSinceSecondsCountFromNow(t *testing.T) {
	w := newWorld(t)
	synctest.Test(t, func(t *testing.T) {
		now := time.Now().UTC()
		w.log(t, "c-app", fmt.Sprintf("%s stdout F old\n%s stdout F new\n", now.Add(-time.Minute).Format(time.RFC3339Nano), now.Add(-9*time.Second).Format(time.RFC3339Nano)))
		for seconds, want := range map[string]string{"10": "new\n", "61": "old\nnew\n", "5": "", "9223372036854775807": "old\nnew\n"} {
			if out := w.direct("GET", "/containerLogs/default/web/app?sinceSeconds="+seconds, "good"); out.Body.String() != want {
				t.Errorf("since %s s: %q", seconds, out.Body)
			}
		}
	})
}

func TestLogsThatLeadElsewhereAreRefused(t *testing.T) {
	w := newWorld(t)
	path := w.log(t, "c-app", "2026-11-20T14:00:01Z stdout F fine\n")
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("2026-11-20T14:00:01Z stdout F secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(secret, path); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(){
		"a link":                          func() {},
		"a path that the runtime made up": func() { w.runtime.logs["c-app"] = secret },
		"a relative one":                  func() { w.runtime.logs["c-app"] = w.logDir + "/../../etc/passwd" },
	} {
		change()
		out := w.direct("GET", "/containerLogs/default/web/app", "good")
		if out.Code != http.StatusForbidden || strings.Contains(out.Body.String(), "secret") || strings.Contains(out.Body.String(), w.logDir) {
			t.Errorf("%s: %d %s", name, out.Code, out.Body)
		}
	}
	w.runtime.logs["c-app"] = filepath.Join(w.logDir, "default_web_uid-web", "c-app", "1.log")
	if out := w.direct("GET", "/containerLogs/default/web/app", "good"); out.Code != http.StatusNotFound {
		t.Errorf("a log that is gone: %d %s", out.Code, out.Body)
	}
	w.runtime.logs["c-app"] = ""
	if out := w.direct("GET", "/containerLogs/default/web/app", "good"); out.Code != http.StatusNotFound {
		t.Errorf("no log: %d %s", out.Code, out.Body)
	}
}

func TestWhatTheRuntimeSaysBecomesAStatus(t *testing.T) {
	w := newWorld(t)
	for err, want := range map[error]int{
		status.Error(codes.NotFound, "no such container"):     404,
		status.Error(codes.Unavailable, "not there"):          503,
		status.Error(codes.ResourceExhausted, "too many"):     429,
		status.Error(codes.InvalidArgument, "makes no sense"): 400,
		errors.New("broken"):                                  500,
	} {
		w.runtime.fault = err
		if out := w.direct("GET", "/containerLogs/default/web/app", "good"); out.Code != want || !strings.Contains(out.Body.String(), status.Convert(err).Message()) {
			t.Errorf("%v: %d %s", err, out.Code, out.Body)
		}
	}
}

// follow opens a log to follow, and gives its lines.
func follow(t *testing.T, ctx context.Context, w *world, query string) (*bufio.Reader, func()) {
	t.Helper()
	certificate := w.authority.client(t, "kube-apiserver")
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{*certificate}}}
	request, err := http.NewRequestWithContext(ctx, "GET", w.url("/containerLogs/default/web/app").String()+"?follow=true&"+query, nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		t.Fatal(err)
	}
	if response.StatusCode != 200 || response.Header.Get("Content-Type") != "text/plain; charset=utf-8" {
		t.Fatalf("%s %v", response.Status, response.Header)
	}
	return bufio.NewReader(response.Body), func() { _ = response.Body.Close(); transport.CloseIdleConnections() }
}

func TestFollowingShowsLinesAsTheyComeAndEndsWithTheContainer(t *testing.T) {
	// Far less time for a request than the test takes: following is no request that takes too long.
	w := newWorld(t, func(o *Options) { o.limits.requestTime = 500 * time.Millisecond }).serve(t)
	path := w.log(t, "c-app", "")
	// Silent as it is, it is answered at once; see follow.
	lines, close := follow(t, t.Context(), w, "")
	defer close()
	file, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	begun := time.Now()
	for i := 0; time.Since(begun) < time.Second; i++ {
		fmt.Fprintf(file, "2026-11-20T14:00:01Z stdout F line %d\n", i)
		if line, err := lines.ReadString('\n'); err != nil || line != fmt.Sprintf("line %d\n", i) {
			t.Fatalf("line %d: %q, %v", i, line, err)
		}
	}
	fmt.Fprint(file, "2026-11-20T14:00:01Z stdout F last words\n")
	w.runtime.set(func() { w.runtime.exited["c-app"] = true })
	rest, err := io.ReadAll(lines)
	if err != nil || string(rest) != "last words\n" {
		t.Errorf("at the end: %q, %v", rest, err)
	}
}

func TestFollowersEndWithTheServer(t *testing.T) {
	w := newWorld(t).serve(t)
	w.log(t, "c-app", "2026-11-20T14:00:01Z stdout F line\n")
	lines, close := follow(t, t.Context(), w, "")
	defer close()
	if line, err := lines.ReadString('\n'); line != "line\n" {
		t.Fatalf("%q, %v", line, err)
	}
	w.stop()
	if rest, err := io.ReadAll(lines); len(rest) > 0 {
		t.Errorf("%q, %v", rest, err)
	}
}

// A follower who takes nothing is let go after a while, and no sooner.
func TestAFollowerWhoTakesNothingIsLetGo(t *testing.T) {
	w := newWorld(t, func(o *Options) { o.limits.stall = 200 * time.Millisecond }).serve(t)
	w.log(t, "c-app", strings.Repeat("2026-11-20T14:00:01Z stdout F "+strings.Repeat("x", 10000)+"\n", 2000))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	_, close := follow(t, ctx, w, "")
	defer close()
	// What ends is the server's side: nobody reads here.
	eventually(t, "the follower is let go", func() bool { return w.connections.Load() == 0 })
}

func TestLogOptionsAreThoseOfTheAPI(t *testing.T) {
	now := time.Date(2026, 11, 20, 14, 0, 0, 0, time.UTC)
	o, previous, err := logOptions(url.Values{
		"follow": {"true"}, "previous": {"1"}, "timestamps": {"0"}, "tailLines": {"5"}, "limitBytes": {"6"}, "sinceSeconds": {"60"},
		"container": {"ignored"}, "insecureSkipTLSVerifyBackend": {"true"},
	}, now)
	if err != nil || !previous || !o.Follow || o.Timestamps || *o.Tail != 5 || *o.Limit != 6 || !o.Since.Equal(now.Add(-time.Minute)) {
		t.Errorf("%+v, %t, %v", o, previous, err)
	}
}

func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !is(); {
		if time.Now().After(end) {
			t.Fatalf("not within 30 s: %s", what)
		}
		<-time.After(10 * time.Millisecond)
	}
}
