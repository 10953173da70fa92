// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"crypto/tls"
	"fmt"
	"net"
	"strconv"
	"time"

	"github.com/spf13/pflag"
	cliflag "k8s.io/component-base/cli/flag"
)

// Options configures the addresses of the endpoints, and the access to them. Flags shared with
// kube-scheduler have the same names and meanings.
type Options struct {
	// These fields configure HTTPS.
	BindAddress   string
	SecurePort    int    // 0 disables HTTPS
	CertFile      string // "": a self-signed certificate in memory
	KeyFile       string
	MinTLSVersion string   // upstream's name of a version; "" is VersionTLS12
	CipherSuites  []string // empty: Go's default
	ClientCAFile  string   // "": client certificates are not requested
	AlwaysAllow   []string // paths without authorization
	// Plain is the address for plain HTTP, as "host:port". "" disables it, and port 0 selects a
	// free port.
	Plain string

	// HTTP2 serves HTTPS over HTTP/2 as well, for gRPC.
	HTTP2 bool
	// Grace is the time for requests over HTTPS to complete after the end.
	Grace time.Duration

	// moves is set if a free port may be used when the default port is in use.
	moves bool
}

// Defaults returns the options of an upstream component with this secure port.
func Defaults(securePort int) Options {
	return Options{
		BindAddress: "0.0.0.0",
		SecurePort:  securePort,
		AlwaysAllow: []string{"/healthz", "/readyz", "/livez"},
	}
}

// AddFlags adds all flags, with o as defaults.
func (o *Options) AddFlags(flags *pflag.FlagSet) {
	flags.StringVar(&o.BindAddress, "bind-address", o.BindAddress, "IP address that --secure-port listens on")
	flags.IntVar(&o.SecurePort, "secure-port", o.SecurePort,
		"HTTPS port of the endpoints, with authentication and authorization by the API server; 0 disables it. If the "+
			"flag is not given and the port is in use, a free one is picked")
	flags.StringVar(&o.CertFile, "tls-cert-file", o.CertFile,
		"certificate for HTTPS, reloaded when it changes (default: self-signed, in memory)")
	flags.StringVar(&o.KeyFile, "tls-private-key-file", o.KeyFile, "key of --tls-cert-file")
	flags.StringVar(&o.MinTLSVersion, "tls-min-version", o.MinTLSVersion, "VersionTLS12 or VersionTLS13")
	flags.StringSliceVar(&o.CipherSuites, "tls-cipher-suites", o.CipherSuites, "cipher suites for HTTPS by their Go names (default: Go's)")
	flags.StringVar(&o.ClientCAFile, "client-ca-file", o.ClientCAFile,
		"CA bundle for client certificates, reloaded when it changes; the common name is the user")
	flags.StringSliceVar(&o.AlwaysAllow, "authorization-always-allow-paths", o.AlwaysAllow,
		"paths that --secure-port serves without authorization")
	o.AddPlainFlag(flags)
}

// AddPlainFlag adds the flag of the plain listener only.
func (o *Options) AddPlainFlag(flags *pflag.FlagSet) {
	flags.StringVar(&o.Plain, "health-bind-address", o.Plain,
		"address of /healthz, /livez, /readyz and /metrics, plain HTTP, unauthenticated; port 0 picks a free one, empty disables it")
}

// Parsed records which flags were given. It must be called after parsing, because a port given by
// the user is never replaced by a free one.
func (o *Options) Parsed(flags *pflag.FlagSet) { o.moves = !flags.Changed("secure-port") }

// Validate returns an error that names the invalid flag. If HTTPS is disabled, the other options
// for HTTPS are not checked.
func (o *Options) Validate() error {
	if o.Plain != "" {
		if _, _, err := net.SplitHostPort(o.Plain); err != nil {
			return fmt.Errorf("--health-bind-address %q: must be host:port", o.Plain)
		}
	}

	if o.SecurePort == 0 {
		return nil
	}
	if o.SecurePort < 0 || o.SecurePort > 65535 {
		return fmt.Errorf("--secure-port %d: must be between 0 and 65535", o.SecurePort)
	}
	if net.ParseIP(o.BindAddress) == nil {
		return fmt.Errorf("--bind-address %q: must be an IP address", o.BindAddress)
	}

	if (o.CertFile == "") != (o.KeyFile == "") {
		return fmt.Errorf("--tls-cert-file and --tls-private-key-file: must be given together")
	}
	if _, err := cliflag.TLSVersion(o.MinTLSVersion); err != nil {
		return fmt.Errorf("--tls-min-version %q: must be VersionTLS12 or VersionTLS13", o.MinTLSVersion)
	}
	if v, _ := cliflag.TLSVersion(o.MinTLSVersion); v < tls.VersionTLS12 {
		return fmt.Errorf("--tls-min-version %q: must be VersionTLS12 or VersionTLS13", o.MinTLSVersion)
	}

	if _, err := cliflag.TLSCipherSuites(o.CipherSuites); err != nil {
		return fmt.Errorf("--tls-cipher-suites: %w", err)
	}
	return nil
}

// secureAddress returns the address of --secure-port, as host:port.
func (o *Options) secureAddress() string {
	return net.JoinHostPort(o.BindAddress, strconv.Itoa(o.SecurePort))
}
