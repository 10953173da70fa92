// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"crypto/tls"
	"fmt"
	"os"

	"k8s.io/client-go/util/cert"
	cliflag "k8s.io/component-base/cli/flag"

	"github.com/berth-k8s/berth/internal/kube/certfile"
)

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
