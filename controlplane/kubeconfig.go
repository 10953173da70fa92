// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"bytes"
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// kubeconfigName names the cluster, user and context in the kubeconfigs written here. Entries with
// other names belong to the user.
const kubeconfigName = "berth"

// newKubeconfig returns a kubeconfig with a new certificate for the given user. It embeds the
// certificates and the key, so that the file can be copied. server is the API's URL.
func (p *pki) newKubeconfig(server, user string, groups ...string) (*clientcmdapi.Config, error) {
	cert, key, err := p.cluster.issueClient(user, groups...)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig for %s: %w", user, err)
	}
	return p.kubeconfigWith(server, &clientcmdapi.AuthInfo{ClientCertificateData: cert, ClientKeyData: key}), nil
}

// kubeconfigWith returns a kubeconfig with the given credentials.
func (p *pki) kubeconfigWith(server string, credentials *clientcmdapi.AuthInfo) *clientcmdapi.Config {
	config := clientcmdapi.NewConfig()
	config.Clusters[kubeconfigName] = &clientcmdapi.Cluster{Server: server, CertificateAuthorityData: p.cluster.pem}
	config.AuthInfos[kubeconfigName] = credentials
	config.Contexts[kubeconfigName] = &clientcmdapi.Context{Cluster: kubeconfigName, AuthInfo: kubeconfigName}
	config.CurrentContext = kubeconfigName
	return config
}

// writeKubeconfig writes a kubeconfig into the data directory.
func (c *controlPlane) writeKubeconfig(name string, config *clientcmdapi.Config) error {
	content, err := clientcmd.Write(*config)
	if err != nil {
		return err
	}
	return writeAtomically(c.dir.pathOf(name), content, 0o600)
}

// writeAdminKubeconfig makes the file point to the server. It keeps the user's additions (a
// namespace, other clusters), leaves an up-to-date file untouched, and replaces a file that is not
// a kubeconfig.
func (p *pki) writeAdminKubeconfig(path, server string) error {
	existing, err := clientcmd.LoadFromFile(path)
	// Only fix the file's mode: it holds the administrator's key.
	if err == nil && p.leadsTo(existing, server) {
		return os.Chmod(path, 0o600)
	}

	fresh, err2 := p.newKubeconfig(server, adminUser, mastersGroup)
	if err2 != nil {
		return err2
	}

	if err == nil {
		existing.Clusters[kubeconfigName] = fresh.Clusters[kubeconfigName]
		existing.AuthInfos[kubeconfigName] = fresh.AuthInfos[kubeconfigName]
		// Keep a context modified by the user, for example its namespace.
		existing.Contexts[kubeconfigName] = cmp.Or(existing.Contexts[kubeconfigName], fresh.Contexts[kubeconfigName])
		existing.CurrentContext = cmp.Or(existing.CurrentContext, kubeconfigName)
		fresh = existing
	}

	content, err := clientcmd.Write(*fresh)
	if err != nil {
		return err
	}
	// The file may hold the user's additions, which must not be lost.
	return writeDurably(path, content, 0o600)
}

// leadsTo reports whether the configuration's own entry is valid for this server for at least a
// month by the machine's clock. The margin is needed because only a start renews the entry.
func (p *pki) leadsTo(config *clientcmdapi.Config, server string) bool {
	cluster, user := config.Clusters[kubeconfigName], config.AuthInfos[kubeconfigName]
	if cluster == nil || user == nil || config.Contexts[kubeconfigName] == nil {
		return false
	}
	// The entry has another port, or belongs to another cluster.
	if cluster.Server != server || !bytes.Equal(cluster.CertificateAuthorityData, p.cluster.pem) {
		return false
	}
	pair, err := tls.X509KeyPair(user.ClientCertificateData, user.ClientKeyData)
	if err != nil || time.Until(pair.Leaf.NotAfter) > certificateLife {
		return false // older versions issued certificates for ten years
	}
	roots := x509.NewCertPool()
	roots.AddCert(p.cluster.certificate)
	_, err = pair.Leaf.Verify(x509.VerifyOptions{
		Roots:       roots,
		KeyUsages:   []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		CurrentTime: time.Now().AddDate(0, 1, 0),
	})
	return err == nil
}
