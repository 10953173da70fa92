// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"fmt"
	"net"
	"os"

	netutils "k8s.io/utils/net"
)

// This file issues the API server's own certificates. The signing CAs are in pki.go; client
// certificates are issued together with their kubeconfig.

// Every start rewrites these files in pki/.
const (
	apiServerCert, apiServerKey         = "apiserver.crt", "apiserver.key"
	proxyClientCert, proxyClientKey     = "front-proxy-client.crt", "front-proxy-client.key"
	kubeletClientCert, kubeletClientKey = "apiserver-kubelet-client.crt", "apiserver-kubelet-client.key"

	frontProxyUser = "front-proxy-client"
	adminUser      = "berth-admin"
	mastersGroup   = "system:masters"
)

// issueCertificates issues the certificates that the API server presents to clients, nodes and
// aggregated APIs. more holds the names and addresses from Options.TLSNames. Call issueCertificates
// before configuring the API server, because that step reads the files.
func (p *pki) issueCertificates(serviceRange string, more []string) error {
	names, ips, err := apiServerNames(serviceRange)
	if err != nil {
		return err
	}

	for _, name := range more {
		// Certificates list names and addresses separately.
		if ip := net.ParseIP(name); ip != nil {
			ips = append(ips, ip)
		} else {
			names = append(names, name)
		}
	}

	serverCert, serverKey, err := p.cluster.issueServer("kube-apiserver", names, ips)
	if err != nil {
		return err
	}

	// The front-proxy CA signs this certificate; see pki.frontProxy.
	proxyCert, proxyKey, err := p.frontProxy.issueClient(frontProxyUser)
	if err != nil {
		return err
	}

	// The certificate has no group: the binding of kubeletClientUser grants its permissions.
	kubeletCert, kubeletKey, err := p.cluster.issueClient(kubeletClientUser)
	if err != nil {
		return err
	}

	// Durability is unnecessary: after a crash the next start issues them again.
	for name, content := range map[string][]byte{
		apiServerCert: serverCert, apiServerKey: serverKey,
		proxyClientCert: proxyCert, proxyClientKey: proxyKey,
		kubeletClientCert: kubeletCert, kubeletClientKey: kubeletKey,
	} {
		if err := writeAtomically(p.pathOf(name), content, 0o600); err != nil {
			return err
		}
	}

	return nil
}

// apiServerNames returns the names and addresses by which clients reach the API server: loopback,
// the machine's name, and the Service "kubernetes" with the first address of the range.
func apiServerNames(serviceRange string) ([]string, []net.IP, error) {
	_, network, err := netutils.ParseCIDRSloppy(serviceRange)
	if err != nil {
		return nil, nil, err
	}
	// The API server assigns the first address to the Service "kubernetes".
	service, err := netutils.GetIndexedIP(network, 1)
	if err != nil {
		return nil, nil, fmt.Errorf("--service-cluster-ip-range: %s: %w", serviceRange, err)
	}
	names := []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"}
	// Without the machine's name the certificate still covers everything else.
	if host, err := os.Hostname(); err == nil {
		names = append(names, host)
	}
	return names, []net.IP{net.IPv4(127, 0, 0, 1), service}, nil
}
