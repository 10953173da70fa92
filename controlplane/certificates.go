package controlplane

import (
	"fmt"
	"net"
	"os"

	netutils "k8s.io/utils/net"
)

// This file makes the certificates of the API server itself. The CAs that sign them are in pki.go;
// those of clients are made where a kubeconfig is.

// Files in pki/ that every start makes anew.
const (
	apiServerCert, apiServerKey         = "apiserver.crt", "apiserver.key"
	proxyClientCert, proxyClientKey     = "front-proxy-client.crt", "front-proxy-client.key"
	kubeletClientCert, kubeletClientKey = "apiserver-kubelet-client.crt", "apiserver-kubelet-client.key"

	frontProxyUser = "front-proxy-client"
	adminUser      = "berth-admin"
	mastersGroup   = "system:masters"
)

// issueCertificates makes what the API server shows to clients, to nodes and to aggregated APIs.
// more are TLSNames: names or addresses. It is called before the API server is configured, which
// reads the files.
func (p *pki) issueCertificates(serviceRange string, more []string) error {
	names, ips, err := apiServerNames(serviceRange)
	if err != nil {
		return err
	}

	for _, name := range more {
		// Certificates list names and addresses apart.
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

	// Signed by the other CA: see pki.frontProxy.
	proxyCert, proxyKey, err := p.frontProxy.issueClient(frontProxyUser)
	if err != nil {
		return err
	}

	// It has no group: what it may do is in the binding of kubeletClientUser.
	kubeletCert, kubeletKey, err := p.cluster.issueClient(kubeletClientUser)
	if err != nil {
		return err
	}

	// Not durably: after a crash the next start makes them again.
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

// apiServerNames are the names and addresses by which clients reach the API server: loopback, the
// machine's name, and the Service "kubernetes", whose address is the first of the range.
func apiServerNames(serviceRange string) ([]string, []net.IP, error) {
	_, network, err := netutils.ParseCIDRSloppy(serviceRange)
	if err != nil {
		return nil, nil, err
	}
	// The API server gives the first address to the Service "kubernetes".
	service, err := netutils.GetIndexedIP(network, 1)
	if err != nil {
		return nil, nil, fmt.Errorf("--service-cluster-ip-range: %s: %w", serviceRange, err)
	}
	names := []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"}
	// Without a name of the machine the certificate is good for all else.
	if host, err := os.Hostname(); err == nil {
		names = append(names, host)
	}
	return names, []net.IP{net.IPv4(127, 0, 0, 1), service}, nil
}
