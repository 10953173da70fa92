// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/util/cert"

	"github.com/berth-k8s/berth/internal/kube/guard"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// authority is an API server that accepts one token, "good", of a user with permission to get
// /metrics. The user "admin" has all permissions.
type authority struct {
	*fake.Clientset
	asked  atomic.Int32
	broken atomic.Bool
}

func newAuthority() *authority {
	a := &authority{Clientset: fake.NewClientset()}
	a.PrependReactor("create", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		a.asked.Add(1)
		if a.broken.Load() {
			return true, nil, errors.New("connection refused")
		}
		switch review := action.(clienttesting.CreateAction).GetObject().DeepCopyObject().(type) {
		case *authenticationv1.TokenReview:
			review.Status.Authenticated = review.Spec.Token == "good"
			review.Status.User = authenticationv1.UserInfo{Username: "prometheus"}
			return true, review, nil
		case *authorizationv1.SubjectAccessReview:
			what := review.Spec.NonResourceAttributes
			review.Status.Allowed = review.Spec.User == "admin" || review.Spec.User == "prometheus" && what.Path == "/metrics" && what.Verb == "get"
			return true, review, nil
		}
		return false, nil, nil
	})
	return a
}

func TestOnlyThoseWhomTheAPIServerAllowsReadMoreThanHealth(t *testing.T) {
	who := newAuthority()
	e := endpoints(t)
	e.Profiling = true
	handler := (&gate{guard: guard.New(who), open: Defaults(0).AlwaysAllow}).wrapHandler(e.Handler())
	for _, row := range []struct {
		path, token string
		code        int
		body        string
	}{
		{"/healthz", "", 200, "ok"},
		{"/livez", "", 200, "ok"},
		{"/readyz", "bad", 200, "ok"},
		{"/metrics", "", 403, `User "system:anonymous" cannot get path "/metrics"`},
		{"/metrics", "bad", 401, "Unauthorized"},
		{"/metrics", "good", 200, "things_total"},
		{"/debug/pprof/", "good", 403, `User "prometheus"`},
		{"/readyz/ping", "", 403, ""},
	} {
		code, body := get(handler, row.path, "Authorization", "Bearer "+row.token)
		if code != row.code || !strings.Contains(body, row.body) {
			t.Errorf("%s with token %q: %d %s, want %d", row.path, row.token, code, body, row.code)
		}
	}
	before := who.asked.Load()
	if get(handler, "/metrics", "Authorization", "Bearer good"); who.asked.Load() != before {
		t.Error("the API server was asked again within 10 s")
	}
	who.broken.Store(true)
	if code, _ := get(handler, "/configz", "Authorization", "Bearer good"); code != 500 {
		t.Errorf("API server away: %d, want 500", code)
	}
	if code, _ := get(handler, "/livez"); code != 200 {
		t.Errorf("/livez with the API server away: %d", code)
	}
}

func TestPathsThatAreOpenCanBeNamed(t *testing.T) {
	handler := (&gate{guard: guard.New(newAuthority()), open: []string{"/metrics", "/debug/*"}}).wrapHandler(endpoints(t).Handler())
	for path, want := range map[string]int{"/metrics": 200, "/debug/pprof/": 404, "/livez": 403, "/metrics/slis": 403} {
		if code, _ := get(handler, path); code != want {
			t.Errorf("%s: %d, want %d", path, code, want)
		}
	}
}

// serveOn runs a server with the options until the test ends.
func serveOn(t *testing.T, o Options) *Server {
	t.Helper()
	s, err := Listen(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.Run(ctx, Handlers{Secure: endpoints(t).Handler(), Plain: endpoints(t).Handler()}, newAuthority())
	}()
	t.Cleanup(func() { stop(); <-done })
	return s
}

func fetch(t *testing.T, url string, config *tls.Config) (int, string) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}, Timeout: 10 * time.Second}
	response, err := client.Get(url)
	if err != nil {
		return 0, err.Error()
	}
	defer response.Body.Close()
	body, _ := io.ReadAll(response.Body)
	return response.StatusCode, string(body)
}

// loopback returns options for loopback. Their port stays in use until the end of the test, so that
// the server moves to a free one. Port 0 would turn HTTPS off.
func loopback(t *testing.T) Options {
	t.Helper()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { taken.Close() })
	o := Defaults(taken.Addr().(*net.TCPAddr).Port)
	o.BindAddress, o.moves = "127.0.0.1", true
	return o
}

func TestBothListenersServe(t *testing.T) {
	o := loopback(t)
	o.Plain = "127.0.0.1:0"
	urls := serveOn(t, o).URLs()
	insecure := &tls.Config{InsecureSkipVerify: true}
	for url, want := range map[string]int{urls[0] + "/livez": 200, urls[0] + "/metrics": 403, urls[1] + "/livez": 200, urls[1] + "/metrics": 200} {
		if code, body := fetch(t, url, insecure); code != want {
			t.Errorf("%s: %d %.200s, want %d", url, code, body, want)
		}
	}
}

// pair writes a certificate and its key, and returns their files.
func pair(t *testing.T, dir, host string) (certFile, keyFile string, certPEM []byte) {
	t.Helper()
	certPEM, keyPEM, err := cert.GenerateSelfSignedCertKey(host, []net.IP{net.IPv4(127, 0, 0, 1)}, nil)
	if err != nil {
		t.Fatal(err)
	}
	certFile, keyFile = filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	for file, data := range map[string][]byte{certFile: certPEM, keyFile: keyPEM} {
		if err := os.WriteFile(file, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return certFile, keyFile, certPEM
}

func TestCertificateOfFilesIsServed(t *testing.T) {
	o := loopback(t)
	o.CertFile, o.KeyFile, _ = pair(t, t.TempDir(), "first")
	config, err := o.tlsConfig()
	if err != nil {
		t.Fatal(err)
	}
	if shown, err := config.GetCertificate(nil); err != nil || !strings.Contains(shown.Leaf.Subject.CommonName, "first") {
		t.Errorf("%v, %v", shown, err)
	}
}

func TestDefaultPortThatIsTakenIsReplacedAndAGivenOneIsNot(t *testing.T) {
	o := loopback(t) // the port is taken
	o.moves = false
	if _, err := Listen(o); err == nil || !strings.Contains(err.Error(), "--secure-port") {
		t.Errorf("a given port that is taken: %v", err)
	}
	o.moves = true
	s, err := Listen(o)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if s.URLs()[0] == "https://"+o.secureAddress() {
		t.Errorf("listens on %v", s.URLs())
	}
}

// admin returns a self-signed client certificate for the user admin in the group ops, and writes it
// to the file as a CA.
func admin(t *testing.T, file string) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "admin", Organization: []string{"ops"}},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

func TestWhoHasAClientCertificateIsItsCommonName(t *testing.T) {
	o := loopback(t)
	o.ClientCAFile = filepath.Join(t.TempDir(), "clients.crt")
	mine := admin(t, o.ClientCAFile)
	url := serveOn(t, o).URLs()[0]
	if code, body := fetch(t, url+"/configz", &tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{mine}}); code != 200 {
		t.Errorf("with a certificate: %d %s", code, body)
	}
	if code, _ := fetch(t, url+"/configz", &tls.Config{InsecureSkipVerify: true}); code != 403 {
		t.Errorf("without one: %d", code)
	}
	other := admin(t, filepath.Join(t.TempDir(), "other.crt"))
	if code, _ := fetch(t, url+"/livez", &tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{other}}); code == 200 {
		t.Error("a certificate of somebody else's authority is taken")
	}
}

// TestClientCAsAreReadAgain verifies that a replaced file of client CAs takes effect, and that the
// previous CA is no longer trusted.
func TestClientCAsAreReadAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := Defaults(1)
		o.ClientCAFile = filepath.Join(t.TempDir(), "clients.crt")
		trusted := func(c tls.Certificate, config *tls.Config) bool {
			t.Helper()
			config, err := config.GetConfigForClient(nil)
			if err != nil {
				t.Fatal(err)
			}
			parsed, err := x509.ParseCertificate(c.Certificate[0])
			if err != nil {
				t.Fatal(err)
			}
			_, err = parsed.Verify(x509.VerifyOptions{Roots: config.ClientCAs, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
			return err == nil
		}
		before := admin(t, o.ClientCAFile)
		config, err := o.tlsConfig()
		if err != nil {
			t.Fatal(err)
		}
		if !trusted(before, config) {
			t.Error("the first CA is not trusted")
		}
		after := admin(t, o.ClientCAFile)
		time.Sleep(2 * time.Minute)
		if trusted(before, config) || !trusted(after, config) {
			t.Error("the file was not read again")
		}
	})
}
