// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"bytes"
	"cmp"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	certutil "k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"

	"github.com/berth-k8s/berth/internal/durable"
)

// pki holds the cluster's trust anchors. The CAs and the token key are created together, once, and
// kept in the data directory, so that issued kubeconfigs and tokens stay valid across restarts.
// Certificates signed by the CAs are reissued at every start (the administrator's only in its last
// month), so they need no renewal and cannot be missing.
type pki struct {
	dir        string
	cluster    *authority // signs certificates of clients and of the API server itself
	frontProxy *authority // signs the API server's certificate for aggregated APIs; separate, because that certificate allows impersonation
}

// authority is a CA. It is immutable once loaded.
type authority struct {
	certificate *x509.Certificate
	pem         []byte
	key         crypto.Signer
}

const (
	authorityLife   = 20 * 365 * 24 * time.Hour // outlives the data directory: there is no rotation
	certificateLife = 365 * 24 * time.Hour      // every start reissues certificates; the administrator's only in its last month
	backdated       = 24 * time.Hour            // certificates stay valid if the clock is set back

	caCertFile, caKeyFile                 = "ca.crt", "ca.key"
	frontProxyCertFile, frontProxyKeyFile = "front-proxy-ca.crt", "front-proxy-ca.key"
	tokenKeyFile                          = "sa.key"
)

// pathOf returns the path of a file in pki/.
func (p *pki) pathOf(name string) string { return filepath.Join(p.dir, name) }

// openPKI loads the CAs, or creates them if the directory is new. A directory with a missing or
// broken file is an error and is never repaired: another CA would invalidate all kubeconfigs and
// tokens.
func openPKI(dir string) (*pki, error) {
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		if err := createPKI(dir); err != nil {
			return nil, err
		}
	}

	p := &pki{dir: dir}
	var err error
	if p.cluster, err = loadAuthority(p.pathOf(caCertFile), p.pathOf(caKeyFile)); err != nil {
		return nil, err
	}
	if p.frontProxy, err = loadAuthority(p.pathOf(frontProxyCertFile), p.pathOf(frontProxyKeyFile)); err != nil {
		return nil, err
	}
	// The API server itself reads this key; load it here only to detect a broken file early.
	if _, err := loadKey(p.pathOf(tokenKeyFile)); err != nil {
		return nil, err
	}
	return p, nil
}

// createPKI creates everything under a temporary name and renames the directory, so that a crash
// leaves all or nothing. It first removes the remains of such a crash. Keys are readable by the
// owner only.
func createPKI(dir string) error {
	temp := dir + ".new"
	if err := os.RemoveAll(temp); err != nil {
		return err
	}
	if err := os.Mkdir(temp, 0o700); err != nil {
		return fmt.Errorf("create %s: %w", temp, stripPath(err))
	}

	files := map[string][]byte{}
	for name, certFile := range map[string][2]string{"berth-ca": {caCertFile, caKeyFile},
		"berth-front-proxy-ca": {frontProxyCertFile, frontProxyKeyFile}} {
		cert, key, err := newAuthority(name)
		if err != nil {
			return err
		}
		files[certFile[0]], files[certFile[1]] = cert, key
	}

	_, tokenKey, err := newKey()
	if err != nil {
		return err
	}

	files[tokenKeyFile] = tokenKey
	for name, content := range files {
		if err := writeDurably(filepath.Join(temp, name), content, 0o600); err != nil {
			return err
		}
	}

	if err := os.Rename(temp, dir); err != nil {
		return err
	}
	// Otherwise a power cut could undo the rename after the cluster has used the keys.
	return durable.SyncDir(filepath.Dir(dir))
}

// newKey returns a new key and its file encoding.
func newKey() (*ecdsa.PrivateKey, []byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	encoded, err := keyutil.MarshalPrivateKeyToPEM(key)
	return key, encoded, err
}

// newAuthority creates a self-signed CA with a new key. It does not retain the key.
func newAuthority(name string) (certPEM, keyPEM []byte, err error) {
	key, keyPEM, err := newKey()
	if err != nil {
		return nil, nil, err
	}
	template := &x509.Certificate{
		Subject:               pkix.Name{CommonName: name},
		NotAfter:              time.Now().Add(authorityLife),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		BasicConstraintsValid: true,
		IsCA:                  true,
	}
	certPEM, err = signCertificate(template, template, key.Public(), key)
	return certPEM, keyPEM, err
}

// issueCertificate creates a key and issues a certificate for it. It sets the fields common to all
// certificates in template.
func (a *authority) issueCertificate(template *x509.Certificate) (certPEM, keyPEM []byte, err error) {
	key, keyPEM, err := newKey()
	if err != nil {
		return nil, nil, err
	}
	template.NotAfter = time.Now().Add(certificateLife)
	template.KeyUsage = x509.KeyUsageDigitalSignature
	certPEM, err = signCertificate(template, a.certificate, key.Public(), a.key)
	return certPEM, keyPEM, err
}

// issueClient issues a certificate for a user. The API server reads the name and the groups from
// the certificate's subject.
func (a *authority) issueClient(user string, groups ...string) (certPEM, keyPEM []byte, err error) {
	return a.issueCertificate(&x509.Certificate{
		Subject: pkix.Name{CommonName: user, Organization: groups},
		// A client certificate must not authenticate a server.
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
}

// issueServer issues a certificate for a server with these names and addresses.
func (a *authority) issueServer(name string, dns []string, ips []net.IP) (certPEM, keyPEM []byte, err error) {
	return a.issueCertificate(&x509.Certificate{
		Subject:     pkix.Name{CommonName: name},
		DNSNames:    dns,
		IPAddresses: ips,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
}

// signCertificate signs a certificate for a public key with the parent's key. The serial number is
// random, and never 0.
func signCertificate(template, parent *x509.Certificate, public crypto.PublicKey, key crypto.Signer) ([]byte, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, err
	}
	template.SerialNumber = serial.Add(serial, big.NewInt(1))
	template.NotBefore = time.Now().Add(-backdated)
	der, err := x509.CreateCertificate(rand.Reader, template, parent, public, key)
	if err != nil {
		return nil, err
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	return certutil.EncodeCertificates(certificate)
}

// loadAuthority reads a CA and verifies its current validity and the matching key. Errors name the
// file and suggest a remedy.
func loadAuthority(certPath, keyPath string) (*authority, error) {
	content, err := os.ReadFile(certPath)
	if err != nil {
		return nil, brokenPKI(certPath, stripPath(err))
	}

	certificates, err := certutil.ParseCertsPEM(content)
	if err != nil {
		return nil, brokenPKI(certPath, errors.New("not a certificate"))
	}

	certificate := certificates[0]
	if now := time.Now(); now.After(certificate.NotAfter) || now.Before(certificate.NotBefore) {
		return nil, brokenPKI(certPath, fmt.Errorf("valid from %s to %s only",
			certificate.NotBefore.Format(time.DateOnly), certificate.NotAfter.Format(time.DateOnly)))
	}

	key, err := loadKey(keyPath)
	if err != nil {
		return nil, err
	}

	// Mixed-up files would otherwise produce universally rejected certificates.
	public, ok := key.Public().(*ecdsa.PublicKey)
	if !ok || !public.Equal(certificate.PublicKey) {
		return nil, brokenPKI(keyPath, fmt.Errorf("not the key of %s", filepath.Base(certPath)))
	}
	return &authority{certificate: certificate, pem: content, key: key}, nil
}

// loadKey reads a private key.
func loadKey(path string) (crypto.Signer, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, brokenPKI(path, stripPath(err))
	}
	parsed, err := keyutil.ParsePrivateKeyPEM(content)
	if err != nil {
		return nil, brokenPKI(path, errors.New("not a private key"))
	}
	key, ok := parsed.(crypto.Signer)
	if !ok {
		return nil, brokenPKI(path, errors.New("not a key that signs"))
	}
	return key, nil
}

// brokenPKI names the broken file and the possible remedies.
func brokenPKI(path string, err error) error {
	return fmt.Errorf("%s: %w: restore the file or name an empty directory with --data-dir", path, err)
}

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
