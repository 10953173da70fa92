// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"crypto/subtle"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"

	"github.com/berth-k8s/berth/internal/durable"
	"github.com/berth-k8s/berth/internal/engine/config"
	"github.com/berth-k8s/berth/internal/engine/decision"
	"github.com/berth-k8s/berth/internal/kube/guard"
	"github.com/berth-k8s/berth/internal/kube/serve"
)

// withDecisions adds endpoints for the configuration in use and the last decision about each pod.
func (p *process) withDecisions(next http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/", next)
	mux.HandleFunc("GET "+decision.Path+"{namespace}/{name}", p.serveDecision)
	mux.HandleFunc("GET "+config.InUsePath, p.serveConfiguration)
	return mux
}

func (p *process) serveConfiguration(w http.ResponseWriter, _ *http.Request) {
	told := *p.inUse.Load().inUse
	told.Server, told.Holder = p.rest.Host, p.elector.Load().Identity()
	writeAnswer(w, told)
}

func (p *process) serveDecision(w http.ResponseWriter, r *http.Request) {
	namespace, name := r.PathValue("namespace"), r.PathValue("name")
	d, err := p.scheduler.Decision(r.Context(), namespace, name)
	switch {
	case err != nil:
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	case d == nil:
		http.Error(w, fmt.Sprintf("pod %s/%s is not pending, and is not among the pods that this scheduler placed last",
			namespace, name), http.StatusNotFound)
		return
	}
	writeAnswer(w, d)
}

// writeAnswer writes an uncacheable JSON document.
func writeAnswer(w http.ResponseWriter, document any) {
	w.Header().Set("Cache-Control", "no-store")
	serve.WriteJSON(w, document)
}

// isLoopback reports whether an address is reachable only from this machine.
func isLoopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.IsLoopback()
}

// withPassword requires the password from the address file, which only its owner can read. The
// loopback port alone does not restrict access, because all users of the machine can reach it.
func (p *process) withPassword(next http.Handler) http.Handler {
	mux := http.NewServeMux()
	decisions := p.withDecisions(next)
	mux.Handle("/", next)
	for _, path := range []string{decision.Path, config.InUsePath} {
		mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
			if _, password, _ := r.BasicAuth(); subtle.ConstantTimeCompare([]byte(password), []byte(p.password)) != 1 {
				guard.Refuse(w, http.StatusUnauthorized, "the password is in the file of --address-file")
				return
			}
			decisions.ServeHTTP(w, r)
		})
	}
	return mux
}

// writeAddresses publishes the endpoints' URLs, with the password, in the address file.
func (p *process) writeAddresses() error {
	file := p.flags.AddressFile
	if file == "" {
		return nil
	}
	var lines strings.Builder
	for _, at := range p.server.URLs() {
		if scheme, host, ok := strings.Cut(at, "://"); ok && scheme == "http" {
			at = "http://berth:" + p.password + "@" + host
		}
		lines.WriteString(at + "\n")
	}
	if err := durable.Swap(file, []byte(lines.String()), 0o600); err != nil {
		return fmt.Errorf("--address-file: %w", err)
	}
	return nil
}
