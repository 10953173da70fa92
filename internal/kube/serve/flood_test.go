// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/berth-k8s/berth/internal/kube/guard"
)

// flooded runs a server on a loopback address with low bounds for connections, and returns its
// addresses.
func flooded(t *testing.T) (secure, plain string, who *authority) {
	t.Helper()
	o := loopback(t)
	o.Plain = "127.0.0.1:0"
	s, err := Listen(o)
	if err != nil {
		t.Fatal(err)
	}
	s.bounds = guard.Bounds{Unadmitted: 16, PerSource: 16, Admitted: 4}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	who = newAuthority()
	go func() {
		defer close(done)
		s.Run(ctx, Handlers{Secure: endpoints(t).Handler(), Plain: endpoints(t).Handler()}, who)
	}()
	t.Cleanup(func() { stop(); <-done })
	return s.secure.Addr().String(), s.plain.Addr().String(), who
}

// open opens a connection, sends the words, and leaves the connection open.
func open(t *testing.T, address string, secure bool, words string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if secure {
		conn = tls.Client(conn, &tls.Config{InsecureSkipVerify: true})
	}
	// Errors are ignored, because the server may close the connection.
	_, _ = io.WriteString(conn, words)
	return conn
}

// TestFloodsDoNotKeepAScraperOut verifies that an authorized scraper and a probe are served during
// attacks with many connections.
func TestFloodsDoNotKeepAScraperOut(t *testing.T) {
	secure, plain, who := flooded(t)
	for name, words := range map[string]string{
		"connections that say nothing": "",
		"headers that do not end":      "GET /metrics HTTP/1.1\r\nHost: x\r\nX-Long: a",
		"bodies that do not come":      "POST /debug/pprof/symbol HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n",
		"tokens that are nobody's":     "GET /metrics HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer made-up\r\n\r\n",
		"large headers":                "GET /metrics HTTP/1.1\r\nHost: x\r\nX-Large: " + strings.Repeat("x", 128<<10) + "\r\n\r\n",
		"answers that nobody takes":    strings.Repeat("GET /livez?verbose HTTP/1.1\r\nHost: x\r\n\r\n", 100),
	} {
		t.Run(name, func(t *testing.T) {
			for range 40 {
				open(t, secure, true, words)
				open(t, plain, false, words)
			}
			token := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}, Timeout: 10 * time.Second}
			request, err := http.NewRequest(http.MethodGet, "https://"+secure+"/metrics", nil)
			if err != nil {
				t.Fatal(err)
			}
			request.Header.Set("Authorization", "Bearer good")
			response, err := token.Do(request)
			if err != nil {
				t.Fatal(err)
			}
			_ = response.Body.Close()
			if response.StatusCode != http.StatusOK {
				t.Errorf("the scraper is told %s", response.Status)
			}
			if code, body := fetch(t, "http://"+plain+"/livez", nil); code != http.StatusOK {
				t.Errorf("the probe is told %d %s", code, body)
			}
		})
	}
	if asked := who.asked.Load(); asked > 100 {
		t.Errorf("the API server was asked %d times", asked)
	}
}

func TestMadeUpTokensAndPathsAreAskedAboutSoOftenAndNoMore(t *testing.T) {
	who := newAuthority()
	handler := (&gate{guard: guard.New(who)}).wrapHandler(endpoints(t).Handler())
	busy := 0
	for i := range 300 {
		if code, _ := get(handler, "/metrics", "Authorization", fmt.Sprint("Bearer made-up-", i)); code == http.StatusTooManyRequests {
			busy++
		}
		if code, _ := get(handler, fmt.Sprint("/made-up/", i)); code == http.StatusTooManyRequests {
			busy++
		}
	}
	if asked := who.asked.Load(); asked > 200 || busy < 400 {
		t.Errorf("of 600 questions %d came to the API server, and %d were refused as too many", asked, busy)
	}
}

// TestARefusalClosesTheConnection verifies that the connection of a refused caller is closed, and
// that of an authorized caller is not.
func TestARefusalClosesTheConnection(t *testing.T) {
	secure, _, _ := flooded(t)
	for _, credentials := range []string{"", "Authorization: Bearer bad\r\n"} {
		conn := open(t, secure, true, "GET /metrics HTTP/1.1\r\nHost: x\r\n"+credentials+"\r\n")
		if answer, err := io.ReadAll(conn); err != nil || !strings.Contains(string(answer), "Connection: close") {
			t.Errorf("%q: %v, %s", credentials, err, answer)
		}
	}
	conn := open(t, secure, true, "GET /metrics HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer good\r\n\r\n")
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil || response.StatusCode != http.StatusOK || response.Close {
		t.Errorf("who is let in loses the connection: %v, %v", response, err)
	}
}

// TestConnectionsOfAFloodAreBounded verifies that in excess of the bound, silent connections are
// closed.
func TestConnectionsOfAFloodAreBounded(t *testing.T) {
	secure, plain, _ := flooded(t)
	for _, address := range []string{secure, plain} {
		var silent []net.Conn
		for range 64 {
			silent = append(silent, open(t, address, false, ""))
		}
		left := len(silent)
		for end := time.Now().Add(5 * time.Second); left > 16 && time.Now().Before(end); {
			left = 0
			for _, conn := range silent {
				_ = conn.SetReadDeadline(time.Now().Add(time.Millisecond))
				if _, err := conn.Read(make([]byte, 1)); errors.Is(err, os.ErrDeadlineExceeded) {
					left++
				}
			}
		}
		if left > 16 {
			t.Errorf("%s: %d of 64 connections are held", address, left)
		}
	}
}
