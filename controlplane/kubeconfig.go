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

// kubeconfigName is cluster, user and context in the kubeconfigs written here.
const kubeconfigName = "berth"

// newKubeconfig is a way into the cluster for a new certificate in the given name.
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
// other clusters) stays, and a file that is right already is not touched.
func (p *pki) writeAdminKubeconfig(path, server string) error {
	existing, err := clientcmd.LoadFromFile(path)
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
	return writeDurably(path, content, 0o600)
}

// leadsTo says whether the configuration's own entry is good for this server for at least a month.
func (p *pki) leadsTo(config *clientcmdapi.Config, server string) bool {
	cluster, user := config.Clusters[kubeconfigName], config.AuthInfos[kubeconfigName]
	if cluster == nil || user == nil || config.Contexts[kubeconfigName] == nil {
		return false
	}
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
