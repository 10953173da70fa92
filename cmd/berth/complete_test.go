// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/berth-k8s/berth/internal/cli/query"
)

// town serves lists with names only, like an API server responding to metadata requests.
type town struct {
	*httptest.Server
	mu    sync.Mutex
	asked []string
}

func newTown(t *testing.T, names map[string][]string) *town {
	served := &town{}
	served.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		served.mu.Lock()
		served.asked = append(served.asked, r.Method+" "+r.URL.Path+"?"+r.URL.RawQuery)
		served.mu.Unlock()
		list, known := names[r.URL.Path]
		w.Header().Set("Content-Type", "application/json")
		switch {
		case !strings.Contains(r.Header.Get("Accept"), "as=PartialObjectMetadataList"):
			t.Errorf("%s: whole objects are asked for: %s", r.URL.Path, r.Header.Get("Accept"))
			w.WriteHeader(http.StatusNotAcceptable)
			return
		case !known:
			w.WriteHeader(http.StatusForbidden)
			fmt.Fprint(w, `{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Forbidden", "code": 403}`)
			return
		}
		items := []any{}
		for _, name := range list {
			items = append(items, map[string]any{"metadata": map[string]any{"name": name}})
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "items": items})
	}))
	t.Cleanup(served.Close)
	return served
}

// completed returns the sorted completions offered by a shell.
func completed(args string, replacer *strings.Replacer) (words []string, errs string) {
	asked := strings.Fields(replacer.Replace(args))
	if strings.HasSuffix(args, " ") {
		asked = append(asked, "")
	}
	out, errs := asPlugin(append([]string{"__complete"}, asked...)...)
	for line := range strings.Lines(out) {
		if word, _, _ := strings.Cut(strings.TrimSpace(line), "\t"); !strings.HasPrefix(word, ":") && word != "" {
			words = append(words, word)
		}
	}
	slices.Sort(words)
	return words, errs
}

func liveConfig(t *testing.T, address string) *strings.Replacer {
	config := file(t, "kubeconfig", fmt.Sprintf(`{apiVersion: v1, kind: Config, current-context: prod,
clusters: [{name: c, cluster: {server: %q}}], users: [{name: u, user: {}}],
contexts: [{name: prod, context: {cluster: c, user: u, namespace: shop}}, {name: preview, context: {cluster: c, user: u}}]}`, address))
	return strings.NewReplacer("CONF", "--kubeconfig "+config)
}

// TestCompletionOfALiveCluster verifies that names are completed from the command's cluster, in the
// flag's namespace or else the context's. They are read as metadata, in one page.
func TestCompletionOfALiveCluster(t *testing.T) {
	const core, apps, shop = "/api/v1/", "/apis/apps/v1/", "namespaces/shop/"
	served := newTown(t, map[string][]string{
		core + "namespaces":                                         {"default", "shop", "shipping"},
		core + "nodes":                                              {"node-1", "node-2", "spare"},
		core + shop + "pods":                                        {"web-0", "web-1", "db-0"},
		core + "namespaces/shipping/pods":                           {"truck-0"},
		core + "namespaces/default/pods":                            {"sole"},
		apps + shop + "deployments":                                 {"web", "worker"},
		apps + shop + "statefulsets":                                {"db"},
		apps + shop + "replicasets":                                 {"web-7d9f"},
		apps + shop + "daemonsets":                                  {"agent"},
		"/apis/batch/v1/namespaces/shop/jobs":                       {"nightly"},
		"/apis/scheduling.k8s.io/v1beta1/namespaces/shop/podgroups": {"train", "serve"},
		"/apis/batch/v1/namespaces/shipping/cronjobs":               {"never asked for"},
	})
	for args, want := range map[string]string{
		"explain CONF pod/":                        "pod/db-0 pod/web-0 pod/web-1",
		"explain CONF pod w":                       "web-0 web-1",
		"explain CONF -n shipping po/":             "po/truck-0",
		"explain CONF --context preview pod/":      "pod/sole",
		"explain CONF deployment/w":                "deployment/web deployment/worker",
		"explain CONF sts/":                        "sts/db",
		"explain CONF replicaset/":                 "replicaset/web-7d9f",
		"explain CONF ds/":                         "ds/agent",
		"explain CONF job/":                        "job/nightly",
		"explain CONF podgroup/":                   "podgroup/serve podgroup/train",
		"explain CONF podgroups tr":                "train",
		"explain CONF -n shipping podgroup/":       "", // pod groups are not served
		"explain CONF podg":                        "podgroup/",
		"what-if CONF delete podgroup/":            "", // no operation accepts pod groups
		"explain CONF --node n":                    "node-1 node-2",
		"explain CONF -n sh":                       "shipping shop",
		"explain CONF --context pr":                "preview prod",
		"pending CONF --namespace s":               "shipping shop",
		"evictions CONF -n d":                      "default",
		"capacity CONF --like deployment/w":        "deployment/web deployment/worker",
		"what-if CONF drain node/node-":            "node/node-1 node/node-2",
		"what-if CONF cordon s":                    "scale spare",
		"what-if CONF taint nodes no":              "node-1 node-2",
		"what-if CONF scale deployment/":           "deployment/web deployment/worker",
		"what-if CONF delete sts d":                "db delete drain",
		"what-if CONF rebalance h":                 "heal",
		"drain CONF s":                             "spare",
		"drain CONF node/s":                        "node/spare",
		"what-if CONF add-pods --like pod/db":      "pod/db-0",
		"what-if CONF -n shipping delete pod/":     "pod/truck-0",
		"what-if CONF -n shipping scale deploy/":   "", // listing deployments is forbidden
		"rebalance CONF ":                          "consolidate= defragment defragment= heal return spread",
		"rebalance CONF heal defragment=w":         "defragment=web-0 defragment=web-1",
		"rebalance CONF defragment=db-0,web-":      "defragment=db-0,web-0 defragment=db-0,web-1",
		"nodes fail CONF --node n":                 "node-1 node-2",
		"check CONF --context pr":                  "preview prod",
		"record CONF --context pre":                "preview",
		"ui CONF --context pro":                    "prod",
		"nodes recover CONF --context pro":         "prod",
		"explain CONF --server SERVER pod/web-":    "pod/web-0 pod/web-1",
		"explain CONF -f nowhere.yaml pod/":        "",
		"explain CONF cronjob/":                    "",
		"what-if CONF add-nodes 2 --like node/sp":  "node/spare",
		"what-if CONF drain node-1 cordon node/sp": "node/spare",
	} {
		replace := liveConfig(t, served.URL)
		args, server := strings.Replace(args, "--server SERVER", "", 1), strings.Contains(args, "--server")
		if server {
			replace = liveConfig(t, "http://127.0.0.1:1")
			args = strings.Replace(args, "CONF", "CONF --server "+served.URL, 1)
		}
		if got, errs := completed(args, replace); strings.Join(got, " ") != want {
			t.Errorf("%s: %q, want %s\n%s", args, got, want, errs)
		}
	}
	for _, request := range served.asked {
		if !strings.HasPrefix(request, "GET ") || !strings.Contains(request, "limit=500") {
			t.Errorf("asked %s: completion reads one page", request)
		}
	}
}

// TestCompletionGivesUp verifies that an unresponsive cluster does not block the shell.
func TestCompletionGivesUp(t *testing.T) {
	silent := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-silent:
		case <-r.Context().Done():
		}
	}))
	defer server.Close()
	defer close(silent)
	began := time.Now()
	if got, _ := completed("explain CONF pod/", liveConfig(t, server.URL)); len(got) > 0 {
		t.Errorf("%q", got)
	}
	if took := time.Since(began); took > query.CompletesWithin+10*time.Second {
		t.Errorf("it took %s", took)
	}
}
