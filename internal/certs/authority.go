package certs

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"time"
)

// File names in a folder of development certificates.
const (
	caCertFile = "ca.pem"
	caKeyFile  = "ca-key.pem"
)

const (
	authorityLife = 10 * 365 * 24 * time.Hour
	// NodeLife is how long a certificate that Issue makes is valid.
	NodeLife = 365 * 24 * time.Hour
	backdate = 5 * time.Minute // for clocks that are a little behind
)

// Authority signs the certificates of a development cluster. In production an
// operator's own authority does, with the same URI names.
type Authority struct {
	dir  string
	cert *x509.Certificate
	key  crypto.Signer
}

// OpenAuthority loads the authority in dir, or makes one there if the folder has
// none. Keys are ECDSA P-256 in files of mode 0600. made tells which happened.
func OpenAuthority(dir string, now time.Time) (a *Authority, made bool, err error) {
	a, err = loadAuthority(dir)
	if !errors.Is(err, fs.ErrNotExist) {
		return a, false, err
	}
	if a, err = makeAuthority(dir, now); err != nil {
		return nil, false, err
	}
	return a, true, nil
}

// NodeFiles are the paths that Issue uses for a node of this name.
func NodeFiles(dir, name string) Files {
	return Files{
		CA:   filepath.Join(dir, caCertFile),
		Cert: filepath.Join(dir, name+".pem"),
		Key:  filepath.Join(dir, name+"-key.pem"),
	}
}

// Issue makes a key and a certificate for a node that is reached under loopback
// names and the given hosts (names or addresses), and writes both. Files of that
// name are replaced: that is how a certificate is renewed.
func (a *Authority) Issue(id Identity, hosts []string, now time.Time) (Files, error) {
	if err := id.Validate(); err != nil {
		return Files{}, fmt.Errorf("issue certificate: %w", err)
	}
	if id.Name == "ca" {
		return Files{}, errors.New(`issue certificate: the name "ca" is the authority's own`)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Files{}, fmt.Errorf("make key of %v: %w", id, err)
	}
	template, err := nodeTemplate(id, hosts, now)
	if err != nil {
		return Files{}, err
	}
	if template.NotAfter.After(a.cert.NotAfter) {
		template.NotAfter = a.cert.NotAfter
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		return Files{}, fmt.Errorf("sign certificate of %v: %w", id, err)
	}
	files := NodeFiles(a.dir, id.Name)
	return files, writePair(files.Cert, files.Key, der, key)
}

func nodeTemplate(id Identity, hosts []string, now time.Time) (*x509.Certificate, error) {
	serial, err := serialNumber()
	if err != nil {
		return nil, err
	}
	t := &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: string(id.Role) + " " + id.Name},
		NotBefore:    now.Add(-backdate),
		NotAfter:     now.Add(NodeLife),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		URIs:         []*url.URL{{Scheme: scheme, Host: string(id.Role), Path: "/" + id.Name}},
		DNSNames:     []string{"localhost"},
		IPAddresses:  []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
	}
	for _, h := range hosts {
		if ip := net.ParseIP(h); ip != nil {
			t.IPAddresses = append(t.IPAddresses, ip)
		} else if h != "" {
			t.DNSNames = append(t.DNSNames, h)
		}
	}
	return t, nil
}

func loadAuthority(dir string) (*Authority, error) {
	certPath, keyPath := filepath.Join(dir, caCertFile), filepath.Join(dir, caKeyFile)
	certPEM, certErr := readFile(certPath)
	keyPEM, keyErr := readFile(keyPath)
	if errors.Is(certErr, fs.ErrNotExist) != errors.Is(keyErr, fs.ErrNotExist) {
		return nil, fmt.Errorf("authority in %s: one of %s and %s is missing", dir, caCertFile, caKeyFile)
	}
	if err := errors.Join(certErr, keyErr); err != nil {
		return nil, fmt.Errorf("read authority: %w", err)
	}
	if err := privateFile(keyPath); err != nil {
		return nil, err
	}
	certBlock, _ := pem.Decode(certPEM)
	keyBlock, _ := pem.Decode(keyPEM)
	if certBlock == nil || keyBlock == nil {
		return nil, fmt.Errorf("authority in %s: no PEM block", dir)
	}
	cert, err := x509.ParseCertificate(certBlock.Bytes)
	if err != nil {
		return nil, fmt.Errorf("authority %s: %w", certPath, err)
	}
	parsed, err := x509.ParsePKCS8PrivateKey(keyBlock.Bytes)
	if err != nil {
		return nil, fmt.Errorf("authority %s: %w", keyPath, err)
	}
	key, ok := parsed.(*ecdsa.PrivateKey)
	if !ok || !key.PublicKey.Equal(cert.PublicKey) {
		return nil, fmt.Errorf("authority in %s: %s is not the key of %s", dir, caKeyFile, caCertFile)
	}
	return &Authority{dir, cert, key}, nil
}

func makeAuthority(dir string, now time.Time) (*Authority, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make authority: %w", err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make authority: %w", err)
	}
	serial, err := serialNumber()
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber:          serial,
		Subject:               pkix.Name{CommonName: "bulkhead development authority"},
		NotBefore:             now.Add(-backdate),
		NotAfter:              now.Add(authorityLife),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
		MaxPathLenZero:        true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("make authority: %w", err)
	}
	if err := writePair(filepath.Join(dir, caCertFile), filepath.Join(dir, caKeyFile), der, key); err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("make authority: %w", err)
	}
	return &Authority{dir, cert, key}, nil
}

func serialNumber() (*big.Int, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("make serial number: %w", err)
	}
	return serial, nil
}

func writePair(certPath, keyPath string, der []byte, key *ecdsa.PrivateKey) error {
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return fmt.Errorf("encode key: %w", err)
	}
	if err := writePEM(keyPath, "PRIVATE KEY", keyDER); err != nil {
		return err
	}
	return writePEM(certPath, "CERTIFICATE", der)
}

// writePEM replaces path atomically by a file of mode 0600.
func writePEM(path, kind string, der []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".new-*") // mode 0600
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	err = pem.Encode(f, &pem.Block{Type: kind, Bytes: der})
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("write %s: %w", path, err), os.Remove(f.Name()))
	}
	return nil
}
