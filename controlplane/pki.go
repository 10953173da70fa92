// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
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
