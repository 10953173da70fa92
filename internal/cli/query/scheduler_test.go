// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package query

import (
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-k8s/berth/internal/engine/config"
	"github.com/berth-k8s/berth/internal/engine/decision"
	"github.com/berth-k8s/berth/internal/kube/connect"
	"github.com/berth-k8s/berth/internal/usage"
)

// write writes a file to a folder writable only by the user.
func write(t *testing.T, path, text string) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// kubeconfig writes a kubeconfig for a server; more holds further fields of the cluster.
func kubeconfig(t *testing.T, dir, server, more string) string {
	t.Helper()
	return write(t, filepath.Join(dir, "kubeconfig"), fmt.Sprintf(`{apiVersion: v1, kind: Config, current-context: c,
clusters: [{name: c, cluster: {server: %q%s}}], users: [{name: u, user: {token: secret}}],
contexts: [{name: c, context: {cluster: c, user: u, namespace: shop}}, {name: d, context: {cluster: c, user: u}}]}`, server, more))
}

// nowhere hides all clusters from the process.
func nowhere(t *testing.T) {
	t.Setenv("KUBECONFIG", "")
	t.Setenv(connect.EnvDataDir, t.TempDir())
	t.Chdir(t.TempDir())
}

// told is a server with the same response on all paths.
func told(t *testing.T, status int, text string) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		fmt.Fprint(w, text)
	}))
	t.Cleanup(s.Close)
	return s
}

// TestTheSchedulerIsFoundBesideTheKubeconfig verifies that --scheduler-url takes precedence over
// the URL published next to the kubeconfig, and that the kubeconfig selected most explicitly
// counts. Without a file the scheduler is unknown.
func TestTheSchedulerIsFoundBesideTheKubeconfig(t *testing.T) {
	nowhere(t)
	root := t.TempDir()
	in := func(name string) string {
		write(t, filepath.Join(root, name, AddressFile), "http://127.0.0.1/"+name)
		return filepath.Join(root, name, "kubeconfig")
	}
	flag, env, data, cwd := in("flag"), in("env"), in("data"), in("cwd")
	for _, c := range []struct {
		about, url, file, env, data string
		want                        string
	}{
		{"--scheduler-url", "https://far:1", flag, env, data, "https://far:1"},
		{"--kubeconfig", "", flag, env, data, "http://127.0.0.1/flag"},
		{"KUBECONFIG", "", "", env, data, "http://127.0.0.1/env"},
		{"the first of KUBECONFIG", "", "", env + ":" + flag, data, "http://127.0.0.1/env"},
		{"the first of KUBECONFIG that is named", "", "", ":" + env, data, "http://127.0.0.1/env"},
		{"the data directory", "", "", "", data, "http://127.0.0.1/data"},
		{"nowhere", "", "", filepath.Join(root, "none", "kubeconfig"), data, ""},
	} {
		t.Setenv("KUBECONFIG", c.env)
		t.Setenv(connect.EnvDataDir, filepath.Dir(c.data))
		t.Chdir(filepath.Dir(cwd))
		s := &Scheduler{URL: c.url, Cluster: &connect.Flags{Kubeconfig: c.file}}
		if got, err := s.find(); err != nil || got != c.want {
			t.Errorf("%s: %q, %v, want %q", c.about, got, err, c.want)
		}
	}
}

// TestAnAddressOfSomebodyElsesIsNotAsked verifies that an address possibly written by another user
// is not queried. The refusal is reported with the remedy, and the result is computed without the
// scheduler.
func TestAnAddressOfSomebodyElsesIsNotAsked(t *testing.T) {
	nowhere(t)
	asked := false
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked = true }))
	defer server.Close()
	for about, c := range map[string]struct {
		text, want string
		change     func(dir, file string) error
	}{
		"a file that others may write": {server.URL, "has mode 0622, which gives others access",
			func(_, file string) error { return os.Chmod(file, 0o622) }},
		"a folder that others may write": {server.URL, "has mode 0777, which gives others access",
			func(dir, _ string) error { return os.Chmod(dir, 0o777) }},
		"another host":             {"http://scheduler.example.com:10251", "http://scheduler.example.com:10251 is not on this machine", nil},
		"a file of another user":   {server.URL, "belongs to user 12345 and not to user 0", func(_, file string) error { return os.Chown(file, 12345, -1) }},
		"a folder of another user": {server.URL, "belongs to user 12345 and not to user 0", func(dir, _ string) error { return os.Chown(dir, 12345, -1) }},
	} {
		dir := filepath.Join(t.TempDir(), "data")
		file := write(t, filepath.Join(dir, AddressFile), c.text)
		if strings.Contains(about, "another user") && os.Geteuid() != 0 {
			continue // only root can change the owner of files
		}
		if c.change != nil {
			if err := c.change(dir, file); err != nil {
				t.Fatal(err)
			}
		}
		q := newQuestion("--kubeconfig", kubeconfig(t, dir, "https://127.0.0.1:1", ""))
		running, err := q.running(q.cmd, nil, now)
		if err != nil || len(running.Profiles) != 1 || !strings.HasPrefix(q.assumed, "Assumed: default-scheduler runs with the default configuration") {
			t.Errorf("%s: %+v, %q, %v", about, running, q.assumed, err)
		}
		if said := q.errs.String(); !strings.HasPrefix(said, "not asked: the scheduler: "+file+" is not trusted: ") || !strings.Contains(said, c.want) ||
			!strings.HasSuffix(said, "specify --scheduler-url\n") {
			t.Errorf("%s: %q, want %s", about, said, c.want)
		}
		if asked {
			t.Fatalf("%s: it was asked", about)
		}
	}
}

// TestTheConfigurationThatASchedulerTells verifies that a discovered scheduler's configuration is
// used only if it belongs to the queried cluster, while a named one is trusted.
func TestTheConfigurationThatASchedulerTells(t *testing.T) {
	nowhere(t)
	const here = "https://127.0.0.1:6443"
	document := func(server string) string {
		return fmt.Sprintf(`{"apiVersion": %q, "kind": %q, "server": %q}`, config.InUseAPIVersion, config.InUseKind, server)
	}
	for about, c := range map[string]struct {
		status int
		text   string
		named  bool
		told   bool
		fault  string
	}{
		"of this cluster":             {200, document(here), false, true, ""},
		"of another cluster":          {200, document("https://127.0.0.1:7443"), false, false, ""},
		"named, of another cluster":   {200, document("https://other:6443"), true, true, ""},
		"a version that does not":     {404, "404 page not found\n", false, false, ""},
		"another kind":                {200, `{"kind": "Pod"}`, true, false, config.InUsePath + ": not a " + config.InUseKind},
		"no document":                 {200, "<html>", true, false, "not a " + config.InUseKind},
		"a fault":                     {500, "broken\ngoroutine 1", true, false, config.InUsePath + ": 500 Internal Server Error: broken"},
		"one that sends us elsewhere": {302, "", true, false, "302 Found"},
		"one that asks who we are":    {401, "who?", true, false, "401 Unauthorized: who?"},
	} {
		dir, server := t.TempDir(), told(t, c.status, c.text)
		s := &Scheduler{Cluster: &connect.Flags{Kubeconfig: kubeconfig(t, dir, here, "")}}
		if c.named {
			s.URL = server.URL
		} else {
			write(t, filepath.Join(dir, AddressFile), server.URL)
		}
		got, err := s.InUse(t.Context())
		if (got != nil) != c.told || (err == nil) != (c.fault == "") || err != nil && !strings.HasSuffix(err.Error(), c.fault) {
			t.Errorf("%s: %+v, %v, want %t, %q", about, got, err, c.told, c.fault)
		}
	}

	write(t, AddressFile, told(t, 200, document(here)).URL)
	if got, err := (&Scheduler{Cluster: &connect.Flags{Kubeconfig: "none"}}).InUse(t.Context()); got != nil || err != nil {
		t.Errorf("of no cluster: %v, %v", got, err)
	}
}

// TestTheDecisionThatASchedulerTells verifies that an unknown pod yields a nil decision; an address
// that serves no decisions at all is an error.
func TestTheDecisionThatASchedulerTells(t *testing.T) {
	for about, c := range map[string]struct {
		status      int
		text        string
		node, fault string
	}{
		"a decision":         {200, fmt.Sprintf(`{"kind": %q, "node": "n1"}`, decision.Kind), "n1", ""},
		"a pod that is new":  {404, "pod shop/web: unknown", "", ""},
		"no such path":       {404, "404 page not found", "", "/debug/decisions/shop/web: 404 Not Found: 404 page not found"},
		"another document":   {200, `{"kind": "Pod"}`, "", "/debug/decisions/shop/web: not a Decision"},
		"no document at all": {200, `{"kind": `, "", "unexpected end of JSON input"},
		"a fault":            {503, "busy", "", "503 Service Unavailable: busy"},
	} {
		s := &Scheduler{URL: told(t, c.status, c.text).URL, Cluster: &connect.Flags{}}
		got, err := s.Decision(t.Context(), "shop", "web")
		if (err == nil) != (c.fault == "") || err != nil && !strings.HasSuffix(err.Error(), c.fault) {
			t.Errorf("%s: %v, want %q", about, err, c.fault)
		}
		if (got != nil) != (c.node != "") || got != nil && got.Node != c.node {
			t.Errorf("%s: %+v", about, got)
		}
	}

	nowhere(t)
	if got, err := (&Scheduler{Cluster: &connect.Flags{}}).Decision(t.Context(), "shop", "web"); got != nil || err != nil {
		t.Errorf("nobody to ask: %v, %v", got, err)
	}
}

// TestCredentialsAreSentToTheClustersSchedulerOnly verifies that the kubeconfig's token is sent
// over HTTPS to a scheduler with a certificate signed by the cluster's CA, and nowhere else,
// including redirect targets.
func TestCredentialsAreSentToTheClustersSchedulerOnly(t *testing.T) {
	nowhere(t)
	var tokens []string
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		tokens = append(tokens, r.URL.Path+" "+r.Header.Get("Authorization"))
		if r.URL.Query().Get("to") != "" {
			http.Redirect(w, r, r.URL.Query().Get("to"), http.StatusFound)
		}
	})
	plain, secure := httptest.NewServer(handler), httptest.NewTLSServer(handler)
	defer plain.Close()
	defer secure.Close()
	own := write(t, filepath.Join(t.TempDir(), "ca.crt"),
		string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: secure.Certificate().Raw})))

	for about, c := range map[string]struct {
		url, cluster string
		want, fault  string
	}{
		"HTTPS, signed by the CA": {secure.URL, ", certificate-authority: " + own, "/x Bearer secret", ""},
		"HTTPS, in capitals": {strings.Replace(secure.URL, "https", "HTTPS", 1), ", certificate-authority: " + own,
			"/x Bearer secret", ""},
		"HTTPS, of others":       {secure.URL, "", "", "certificate signed by unknown authority"},
		"HTTPS, nobody verifies": {secure.URL, ", insecure-skip-tls-verify: true", "", "insecure-skip-tls-verify"},
		"HTTP":                   {plain.URL, ", certificate-authority: " + own, "/x ", ""},
		"HTTPS that sends us elsewhere": {secure.URL + "?to=" + plain.URL + "/elsewhere", ", certificate-authority: " + own,
			"/x Bearer secret", "302 Found"},
		"HTTP that sends us elsewhere": {plain.URL + "?to=" + plain.URL + "/elsewhere", "", "/x ", "302 Found"},
	} {
		tokens = nil
		s := &Scheduler{URL: c.url, Cluster: &connect.Flags{Kubeconfig: kubeconfig(t, t.TempDir(), "https://127.0.0.1:6443", c.cluster)}}
		_, _, err := s.get(t.Context(), "/x")
		if (err == nil) != (c.fault == "") || err != nil && !strings.Contains(err.Error(), c.fault) {
			t.Errorf("%s: %v, want %q", about, err, c.fault)
		}
		if got := strings.Join(tokens, ","); got != c.want {
			t.Errorf("%s: sent %q, want %q", about, got, c.want)
		}
	}
	if http.DefaultClient.CheckRedirect != nil {
		t.Error("the client of the whole process was changed")
	}
}

func TestAnAddressMustBeAURL(t *testing.T) {
	for _, address := range []string{"127.0.0.1:10251", "localhost:10251", "ftp://localhost", "http://", "https:/localhost", "scheduler", "http://a b"} {
		_, err := (&Scheduler{URL: address, Cluster: &connect.Flags{}}).InUse(t.Context())
		if want := fmt.Sprintf("--scheduler-url %q: must begin with http:// or https://, and name a host", address); err == nil || err.Error() != want || !usage.IsError(err) {
			t.Errorf("%v, want %s", err, want)
		}
		q := newQuestion("--scheduler-url", address)
		if err := q.Prepare(q.cmd); !usage.IsError(err) {
			t.Errorf("%s: it is found out late: %v", address, err)
		}
	}
}
