package controlplane

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// kubeconfigName is cluster, user and context in the kubeconfigs written here. Entries of other
// names in the file are the user's.
const kubeconfigName = "berth"

// newKubeconfig is a way into the cluster for a new certificate in the given name. Everything is in
// it, certificates and key included, so that the file can be copied. server is the API's URL.
func (p *pki) newKubeconfig(server, user string, groups ...string) (*clientcmdapi.Config, error) {
	cert, key, err := p.cluster.issueClient(user, groups...)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig for %s: %w", user, err)
	}
	config := clientcmdapi.NewConfig()
	config.Clusters[kubeconfigName] = &clientcmdapi.Cluster{Server: server, CertificateAuthorityData: p.cluster.pem}
	config.AuthInfos[kubeconfigName] = &clientcmdapi.AuthInfo{ClientCertificateData: cert, ClientKeyData: key}
	config.Contexts[kubeconfigName] = &clientcmdapi.Context{Cluster: kubeconfigName, AuthInfo: kubeconfigName}
	config.CurrentContext = kubeconfigName
	return config, nil
}

// writeAdminKubeconfig makes the file lead to the server. What users added to it (a namespace,
// other clusters) stays, and a file that is right already is not touched. A file that cannot be
// read as a kubeconfig is replaced.
func (p *pki) writeAdminKubeconfig(path, server string) error {
	existing, err := clientcmd.LoadFromFile(path)
	// Only its mode is put right: it has the administrator's key.
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
		// A context that users changed, such as its namespace, is theirs.
		if existing.Contexts[kubeconfigName] == nil {
			existing.Contexts[kubeconfigName] = fresh.Contexts[kubeconfigName]
		}
		if existing.CurrentContext == "" {
			existing.CurrentContext = kubeconfigName
		}
		fresh = existing
	}

	content, err := clientcmd.Write(*fresh)
	if err != nil {
		return err
	}
	// It may have what users added, which must not be lost.
	return writeDurably(path, content, 0o600)
}

// leadsTo says whether the configuration's own entry is good for this server for at least a month.
// Only a start renews it, and so some time ahead. The clock of the machine decides.
func (p *pki) leadsTo(config *clientcmdapi.Config, server string) bool {
	cluster, user := config.Clusters[kubeconfigName], config.AuthInfos[kubeconfigName]
	if cluster == nil || user == nil || config.Contexts[kubeconfigName] == nil {
		return false
	}
	// Another port, or another cluster's file.
	if cluster.Server != server || !bytes.Equal(cluster.CertificateAuthorityData, p.cluster.pem) {
		return false
	}
	pair, err := tls.X509KeyPair(user.ClientCertificateData, user.ClientKeyData)
	if err != nil || time.Until(pair.Leaf.NotAfter) > certificateLife {
		return false // older versions made them for ten years
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
