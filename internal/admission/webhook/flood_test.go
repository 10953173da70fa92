// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berth-k8s/berth/internal/kube/guard"
)

// served returns a serving webhook on loopback.
func served(t *testing.T, change ...func(*Webhook)) (w *Webhook, address string) {
	t.Helper()
	w = testWebhook()
	certs, _, err := certificates{}.renewIfDue([]string{"localhost"}, validity{time.Hour}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	w.serving.Store(certs.tlsCertificate())
	close(w.warm)
	for _, f := range change {
		f(w)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := w.newServer(w.newHandler(testReviewer(t)))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = server.ServeTLS(guard.Bound(listener, connections), "", "")
	}()
	t.Cleanup(func() { _ = server.Close(); <-ended })
	return w, listener.Addr().String()
}

func apiServer(protocols ...string) *http.Client {
	return &http.Client{
		Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true, NextProtos: protocols}, ForceAttemptHTTP2: slices.Contains(protocols, "h2"), DisableKeepAlives: true},
		Timeout:   20 * time.Second,
	}
}

func review(t *testing.T, client *http.Client, address string) (int, string) {
	t.Helper()
	response, err := client.Post("https://"+address+mutatePath+"?timeout=10s", "application/json", strings.NewReader(reviewOf(`{"metadata":{"name":"p"},"spec":{}}`)))
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(body)
}

// endless is a body without an end.
type endless struct{ ended chan struct{} }

func (e endless) Read([]byte) (int, error) { <-e.ended; return 0, io.EOF }

// TestABodyHasADeadline verifies, for both protocols, that the webhook waits for a missing body no
// longer than the API server's timeout.
func TestABodyHasADeadline(t *testing.T) {
	_, address := served(t)
	for _, protocol := range []string{"http/1.1", "h2"} {
		body, never := io.Pipe() // no data arrives, and finally the client times out
		defer time.AfterFunc(15*time.Second, func() { _ = never.CloseWithError(io.ErrUnexpectedEOF) }).Stop()
		request, err := http.NewRequest(http.MethodPost, "https://"+address+mutatePath+"?timeout=1s", body)
		if err != nil {
			t.Fatal(err)
		}
		request.ContentLength = 1000
		began := time.Now()
		response, err := apiServer(protocol).Do(request)
		if err == nil {
			_ = response.Body.Close()
		}
		if took := time.Since(began); took > 10*time.Second || err == nil && response.StatusCode == http.StatusOK {
			t.Errorf("%s: after %v: %v, %v", protocol, took, response, err)
		}
	}
}

// TestReviewsUnderWayAreBoundedBySource verifies that unknown callers with the maximum number of
// reviews, small and large ones, do not delay an API server at another address.
func TestReviewsUnderWayAreBoundedBySource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := testWebhook()
		close(w.warm)
		never := make(chan struct{})
		handler := w.reviewHandler("mutate", nil)
		send := func(source string, length int64, body io.Reader) *httptest.ResponseRecorder {
			request := httptest.NewRequest(http.MethodPost, mutatePath+"?timeout=10s", body)
			request.ContentLength, request.RemoteAddr = length, source+":1"
			out := httptest.NewRecorder()
			handler.ServeHTTP(out, request)
			return out
		}
		for range 200 {
			go send("10.0.0.1", 100, endless{never})
			go send("10.0.0.1", -1, endless{never})
		}
		synctest.Wait()
		if small, large := len(w.lanes.small.all), len(w.lanes.large.all); small != 64 || large != 2 {
			t.Errorf("one source has %d small and %d large reviews under way", small, large)
		}
		for name, length := range map[string]int64{"small": 1, "large": -1} {
			if got := send("10.0.0.2", length, strings.NewReader("{")); got.Code != http.StatusBadRequest {
				t.Errorf("a %s review of another source: %d %s", name, got.Code, got.Body)
			}
		}
		// Waits beyond the API server's timeout end with an error.
		time.Sleep(time.Minute)
		close(never)
		synctest.Wait()
		if left := len(w.lanes.small.sources) + len(w.lanes.large.sources); left != 0 {
			t.Errorf("%d sources are remembered", left)
		}
	})
}

func TestAReviewIsNoLongerThanItsLane(t *testing.T) {
	w := testWebhook()
	close(w.warm)
	handler := w.newHandler(testReviewer(t))
	for length, want := range map[int]int{smallReview + 1: http.StatusOK, largestReview + 1: http.StatusBadRequest} {
		body := reviewOf(`{"metadata":{"name":"p"},"spec":{}}`)
		body += strings.Repeat(" ", length-len(body))
		if got := post(handler, mutatePath, body); got.Code != want {
			t.Errorf("%d bytes: %d %.100s", length, got.Code, got.Body)
		}
	}
}

// TestFloodsDoNotHoldUpReviews verifies that the webhook serves reviews regardless of the traffic
// of unknown callers.
func TestFloodsDoNotHoldUpReviews(t *testing.T) {
	_, address := served(t)
	for name, words := range map[string]string{
		"connections that say nothing": "",
		"headers that do not end":      "POST /mutate HTTP/1.1\r\nHost: x\r\nX-Long: a",
		"bodies that do not come":      "POST /mutate HTTP/1.1\r\nHost: x\r\nContent-Length: 200000\r\n\r\n",
		"large headers":                "POST /mutate HTTP/1.1\r\nHost: x\r\nX-Large: " + strings.Repeat("x", 128<<10) + "\r\n\r\n",
	} {
		for range 80 {
			conn, err := net.Dial("tcp", address)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
			_, _ = io.WriteString(tls.Client(conn, &tls.Config{InsecureSkipVerify: true}), words)
		}
		if code, body := review(t, apiServer("h2"), address); code != http.StatusOK {
			t.Errorf("%s: %d %s", name, code, body)
		}
	}
}

func TestStreamsOfAConnectionAreBounded(t *testing.T) {
	_, address := served(t)
	conn, err := tls.Dial("tcp", address, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	// Send the preface and empty SETTINGS. The server sends its SETTINGS first: frames of type 4,
	// with entries of 2 and 4 bytes.
	if _, err := io.WriteString(conn, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"); err != nil {
		t.Fatal(err)
	}
	head := make([]byte, 9)
	if _, err := io.ReadFull(conn, head); err != nil || head[3] != 4 {
		t.Fatal(head, err)
	}
	settings := make([]byte, int(head[0])<<16|int(head[1])<<8|int(head[2]))
	if _, err := io.ReadFull(conn, settings); err != nil {
		t.Fatal(err)
	}
	if want := []byte{0, 3, 0, 0, 0, streams}; !bytes.Contains(settings, want) {
		t.Errorf("SETTINGS % x do not bound the streams to %d", settings, streams)
	}
}

func TestOnlyWhoHasACertificateIsAnsweredWhereOneIsAskedFor(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	own, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	_, address := served(t, func(w *Webhook) {
		w.clients = x509.NewCertPool()
		w.clients.AddCert(own)
	})
	if response, err := apiServer("h2").Post("https://"+address+mutatePath, "application/json", strings.NewReader("{")); err == nil {
		_ = response.Body.Close()
		t.Error("who has no certificate is answered: ", response.Status)
	}
	known := apiServer("h2")
	known.Transport.(*http.Transport).TLSClientConfig.Certificates = []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}
	if code, body := review(t, known, address); code != http.StatusOK {
		t.Errorf("who has one is told %d %s", code, body)
	}
}
