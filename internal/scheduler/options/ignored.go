// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package options

import (
	"fmt"
	"maps"
	"slices"

	"github.com/spf13/pflag"
)

// ignored holds current and former flags of kube-scheduler without an effect in Berth, with the
// reason, so that manifests and scripts using them still work.
var ignored = map[string]string{
	"authentication-kubeconfig":                    "callers are authenticated and authorized by the cluster of --kubeconfig",
	"authentication-skip-lookup":                   "client certificates are checked against --client-ca-file only",
	"authentication-tolerate-lookup-failure":       "client certificates are checked against --client-ca-file only",
	"authentication-token-webhook-cache-ttl":       "answers are cached for 10s",
	"authorization-kubeconfig":                     "callers are authenticated and authorized by the cluster of --kubeconfig",
	"authorization-webhook-cache-authorized-ttl":   "answers are cached for 10s",
	"authorization-webhook-cache-unauthorized-ttl": "answers are cached for 10s",
	"cert-dir":                                    "a certificate is named by --tls-cert-file, or made in memory",
	"disable-http2-serving":                       "endpoints are served by HTTP/1.1",
	"http2-max-streams-per-connection":            "endpoints are served by HTTP/1.1",
	"emulated-version":                            "Berth follows one version of Kubernetes: see berth version",
	"emulation-forward-compatible":                "Berth follows one version of Kubernetes: see berth version",
	"min-compatibility-version":                   "Berth follows one version of Kubernetes: see berth version",
	"runtime-config-emulation-forward-compatible": "Berth follows one version of Kubernetes: see berth version",
	"permit-address-sharing":                      "a port that is taken is an error, or replaced if it was the default",
	"permit-port-sharing":                         "a port that is taken is an error, or replaced if it was the default",
	"requestheader-allowed-names":                 "endpoints are asked directly, not through the API server",
	"requestheader-client-ca-file":                "endpoints are asked directly, not through the API server",
	"requestheader-extra-headers-prefix":          "endpoints are asked directly, not through the API server",
	"requestheader-group-headers":                 "endpoints are asked directly, not through the API server",
	"requestheader-uid-headers":                   "endpoints are asked directly, not through the API server",
	"requestheader-username-headers":              "endpoints are asked directly, not through the API server",
	"tls-curve-preferences":                       "Go's are used",
	"tls-sni-cert-key":                            "one certificate is served: --tls-cert-file",
	// These flags have been removed from kube-scheduler, but are still in old manifests.
	"address":                  "plain HTTP is --health-bind-address",
	"port":                     "plain HTTP is --health-bind-address",
	"use-legacy-policy-config": "--policy-config-file and --policy-configmap always take effect",
}

// ignoredBooleans holds the ignored flags that may be given without a value.
var ignoredBooleans = []string{
	"authentication-skip-lookup", "authentication-tolerate-lookup-failure", "disable-http2-serving", "emulation-forward-compatible",
	"permit-address-sharing", "permit-port-sharing", "runtime-config-emulation-forward-compatible", "use-legacy-policy-config",
}

// anything accepts every value, so that an old manifest may set an ignored flag to any value.
type anything struct{ value string }

// String, Set and Type implement [pflag.Value].
func (a *anything) String() string         { return a.value }
func (a *anything) Set(value string) error { a.value = value; return nil }
func (a *anything) Type() string           { return "string" }

// addIgnored adds the ignored flags missing from the command so far. They are hidden, so that
// --help does not offer them.
func addIgnored(set *pflag.FlagSet) {
	for name, why := range ignored {
		if set.Lookup(name) != nil {
			continue
		}
		f := set.VarPF(&anything{}, name, "", "has no effect: "+why)
		f.Hidden = true
		if slices.Contains(ignoredBooleans, name) {
			f.NoOptDefVal = "true"
		}
	}
}

// ignoredNotes reports the given flags without an effect.
func (f *Flags) ignoredNotes() (notes []string) {
	for _, name := range slices.Sorted(maps.Keys(ignored)) {
		if f.given(name) {
			notes = append(notes, fmt.Sprintf("--%s: has no effect: %s", name, ignored[name]))
		}
	}
	return notes
}
