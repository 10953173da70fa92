// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"crypto/tls"
	"fmt"
	"net"
	"os"
	"strconv"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/client-go/util/cert"
	cliflag "k8s.io/component-base/cli/flag"

	"github.com/berth-k8s/berth/internal/kube/certfile"
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
	if v, err := cliflag.TLSVersion(o.MinTLSVersion); err != nil || v < tls.VersionTLS12 {
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

// tlsConfig returns the configuration of the secure listener. The files are read once, so that
// invalid files are an error at the start, and then regularly (package certfile). By default, only
// HTTP/1.1 is served, so that a connection has one request at a time.
func (o *Options) tlsConfig() (*tls.Config, error) {
	version, err := cliflag.TLSVersion(o.MinTLSVersion)
	if err != nil {
		return nil, err
	}
	suites, err := cliflag.TLSCipherSuites(o.CipherSuites)
	if err != nil {
		return nil, err
	}
	config := &tls.Config{MinVersion: version, CipherSuites: suites, NextProtos: []string{"http/1.1"}}
	if o.HTTP2 {
		config.NextProtos = []string{"h2", "http/1.1"}
	}
	if o.ClientCAFile != "" {
		authorities, err := certfile.ReadBundle(o.ClientCAFile)
		if err != nil {
			return nil, fmt.Errorf("--client-ca-file: %w", err)
		}
		config.ClientAuth = tls.VerifyClientCertIfGiven
		config.SessionTicketsDisabled = true // a resumed session could outlive the CA that verified its certificate
		// A configuration has fixed CAs, so each connection gets a copy of the configuration with
		// the newest CAs.
		config.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
			own := config.Clone()
			own.GetConfigForClient, own.ClientCAs = nil, authorities.Newest()
			return own, nil
		}
	}
	if o.CertFile == "" {
		own, err := selfSigned()
		if err != nil {
			return nil, err
		}
		config.Certificates = []tls.Certificate{own}
		return config, nil
	}
	files, err := certfile.Read(o.CertFile, o.KeyFile)
	if err != nil {
		return nil, fmt.Errorf("--tls-cert-file: %w", err)
	}
	config.GetCertificate = files.Newest
	return config, nil
}

// selfSigned returns a self-signed certificate, which is used until the process ends. Callers
// cannot verify it, but it encrypts their requests, above all the tokens.
func selfSigned() (tls.Certificate, error) {
	host, err := os.Hostname()
	if err != nil {
		host = "localhost"
	}
	certPEM, keyPEM, err := cert.GenerateSelfSignedCertKey(host, nil, []string{"localhost"})
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("generate a certificate: %w", err)
	}
	return tls.X509KeyPair(certPEM, keyPEM)
}
