// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"

	"github.com/berth-k8s/berth/internal/engine/config"
	"github.com/berth-k8s/berth/internal/kube/lead"
	"github.com/berth-k8s/berth/internal/kube/serve"
	"github.com/berth-k8s/berth/internal/scheduler/options"
)

// TestDecisionsAreForThisMachine verifies that plain HTTP, which does not authenticate callers,
// serves decisions to this machine only.
func TestDecisionsAreForThisMachine(t *testing.T) {
	for address, want := range map[string]bool{
		"127.0.0.1:10251": true, "[::1]:10251": true, "127.8.8.8:1": true,
		"0.0.0.0:10251": false, "[::]:10251": false, "10.0.0.7:10251": false, "": false, "localhost": false,
	} {
		if got := isLoopback(address); got != want {
			t.Errorf("%q: %t", address, got)
		}
	}
}

func TestAddressesAreLeftWhereOthersLook(t *testing.T) {
	file := filepath.Join(t.TempDir(), "scheduler.url")
	if err := os.WriteFile(file, []byte("http://127.0.0.1:1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	flags := options.Add(pflag.NewFlagSet("", pflag.ContinueOnError))
	flags.AddressFile = file
	server, err := serve.Listen(serve.Options{Plain: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	p := &process{command: &command{flags: flags}, server: server, password: "secret"}
	if err := p.writeAddresses(); err != nil {
		t.Fatal(err)
	}
	if text, _ := os.ReadFile(file); string(text) != strings.Replace(server.URLs()[0], "://", "://berth:secret@", 1)+"\n" {
		t.Errorf("wrote %q", text)
	}
	flags.AddressFile = filepath.Join(file, "no", "folder")
	if err := p.writeAddresses(); err == nil {
		t.Error("a folder that is not there is no error")
	}
}

// TestDecisionsNeedThePassword verifies that other users of the machine cannot read decisions and
// configurations on the plain port, and that other paths are unaffected.
func TestDecisionsNeedThePassword(t *testing.T) {
	p := &process{password: "secret"}
	handler := p.withPassword(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	for _, path := range []string{"/debug/decisions/default/web", "/debug/decisions/", config.InUsePath, "/healthz"} {
		for _, password := range []string{"", "wrong"} {
			r := httptest.NewRequest(http.MethodGet, path, nil)
			if password != "" {
				r.SetBasicAuth("berth", password)
			}
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, r)
			if want := map[bool]int{true: http.StatusOK, false: http.StatusUnauthorized}[path == "/healthz"]; w.Code != want {
				t.Errorf("%s with the password %q: %d, expected %d", path, password, w.Code, want)
			}
		}
	}
}

// TestTheConfigurationNamesTheReplica verifies that the configuration contains the replica's
// identity, which readers compare with the holder of the Lease.
func TestTheConfigurationNamesTheReplica(t *testing.T) {
	p := &process{rest: &rest.Config{Host: "https://here"}}
	elector, err := lead.New(p.rest, lead.Defaults("x"), nil)
	if err != nil {
		t.Fatal(err)
	}
	p.elector.Store(elector)
	p.inUse.Store(&loaded{inUse: &config.InUse{Kind: config.InUseKind}})
	w := httptest.NewRecorder()
	p.serveConfiguration(w, nil)
	if told := config.ReadInUse(w.Body.Bytes()); told == nil || told.Holder != elector.Identity() || told.Server != "https://here" {
		t.Errorf("told %+v, expected holder %s", told, elector.Identity())
	}
}
