package linux

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path"

	"golang.org/x/sys/unix"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/agent/host"
	"github.com/novox/mesh/appliance/pki"
	"github.com/novox/mesh/appliance/wire"
)

// certificates makes a key for each certificate, asks with it, and lays beside it what the mesh has signed (PKI-3). The folder is root's,
// so that a module's user can read what is in it, and change nothing but the key that is its own.
//
// Nobody ever finds a certificate beside a key that it is not for: before a key is replaced its certificate goes, and one for the new key
// comes when the mesh has signed it. Then whoever runs with it acts (DEC-11).
type certificates struct{}

const (
	keyFile         = "key.pem"
	certificateFile = "cert.pem"
	authorityFile   = "ca.pem"
	requestFile     = "request.der" // says which key the certificate is for: root's alone
)

// part is one of a certificate's files.
type part struct {
	name    string
	content []byte // nil: it shall not be there
	attributes
}

// asked reads the request in the folder, and its key. Nil where there is none that holds.
func asked(s wire.CertificateSpec) ([]byte, *ecdsa.PublicKey, error) {
	request, _, err := readFile(path.Join(s.Folder, requestFile))
	if request == nil || err != nil {
		return nil, nil, err
	}
	key, err := pki.ParseRequest(request)
	if err != nil {
		return nil, nil, nil // damaged: another is made
	}
	return request, key, nil
}

// readFile gives a file's content and attributes; nil where it is not there. No more than a key or a certificate is read.
func readFile(at string) ([]byte, attributes, error) {
	p, err := walk(at)
	if errors.Is(err, os.ErrNotExist) {
		return nil, attributes{}, nil
	}
	if err != nil {
		return nil, attributes{}, err
	}
	defer p.close()
	f, st, err := p.open(unix.S_IFREG, "file")
	if f == nil || err != nil {
		return nil, attributes{}, err
	}
	defer f.Close()
	content := make([]byte, min(st.Size, 64<<10))
	if _, err := f.ReadAt(content, 0); err != nil {
		return nil, attributes{}, p.fail("read", err)
	}
	return content, attributesOf(st), nil
}

// opens says whether text is the private half of public.
func opens(text []byte, public *ecdsa.PublicKey) bool {
	block, _ := pem.Decode(text)
	if block == nil {
		return false
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	private, ok := key.(*ecdsa.PrivateKey)
	return err == nil && ok && private.PublicKey.Equal(public)
}

// parts gives what shall lie in the folder beside the key: the authority before the certificate, which comes last. waits says why the
// certificate cannot be there yet.
func (certificates) parts(s wire.CertificateSpec, key *ecdsa.PublicKey) (parts []part, waits error) {
	if len(s.Certificate) == 0 {
		waits = appliance.Errorf(appliance.NotReady, "certificate %s: the mesh has not signed its key yet", s.Name)
	} else if err := pki.Certifies(s.Certificate, key, s.Names); err != nil {
		waits = appliance.Errorf(appliance.NotReady, "certificate %s: the mesh has to sign its key anew: %w", s.Name, err)
	}
	if waits != nil {
		return nil, waits
	}
	public := attributes{0, 0, 0o644}
	authority := part{authorityFile, nil, public}
	if len(s.Authority) > 0 {
		authority.content = pki.EncodePEM(s.Authority)
	}
	return []part{authority, {certificateFile, pki.EncodePEM(s.Certificate), public}}, nil
}

func (p part) differs(s wire.CertificateSpec) (string, error) {
	have, attributes, err := readFile(path.Join(s.Folder, p.name))
	switch {
	case err != nil:
		return "", err
	case have == nil && p.content == nil:
		return "", nil
	case have == nil:
		return p.name + " is gone", nil
	case !bytes.Equal(have, p.content):
		return p.name + ": content", nil
	}
	if d := attributes.differs(p.attributes); d != "" {
		return p.name + ": " + d, nil
	}
	return "", nil
}

func (c certificates) Observe(_ context.Context, r wire.Resource) (host.Observation, error) {
	s, err := read[wire.CertificateSpec](r)
	if err != nil {
		return host.Observation{}, err
	}
	folder, err := walk(s.Folder)
	if errors.Is(err, os.ErrNotExist) {
		return host.Observation{}, nil
	}
	if err != nil {
		return host.Observation{}, err
	}
	defer folder.close()
	f, st, err := folder.open(unix.S_IFDIR, "folder")
	if f == nil || err != nil {
		return host.Observation{}, err
	}
	f.Close()
	o := host.Observation{Present: true}
	private, err := lookup(s.Owner, s.Owner, "0600")
	if err != nil {
		o.Differs = err.Error()
		return o, nil
	}
	_, key, err := asked(s)
	if err != nil {
		return o, err
	}
	text, attributes, err := readFile(path.Join(s.Folder, keyFile))
	if err != nil {
		return o, err
	}
	switch folderDiffers, keyDiffers := attributesOf(st).differs(folderOf(private)), attributes.differs(private); {
	case folderDiffers != "":
		o.Differs = folderDiffers
	case text == nil:
		o.Differs = keyFile + " is gone"
	case key == nil:
		o.Differs = "no request for the key"
	case !opens(text, key):
		o.Differs = keyFile + ": another key than the certificate's"
	case keyDiffers != "":
		o.Differs = keyFile + ": " + keyDiffers
	}
	if o.Differs != "" {
		return o, nil
	}
	parts, waits := c.parts(s, key)
	if waits != nil {
		o.Differs = waits.Error()
		return o, nil
	}
	for _, p := range parts {
		if o.Differs, err = p.differs(s); err != nil || o.Differs != "" {
			return o, err
		}
	}
	o.Matches = true
	return o, nil
}

// folderOf is what a certificate's folder has, by what its key has.
func folderOf(key attributes) attributes { return attributes{0, key.GID, 0o750} }

// Before has nothing to keep: the folder's name is the mesh's own.
func (certificates) Before(context.Context, wire.Resource) (json.RawMessage, error) { return nil, nil }

func (c certificates) Do(_ context.Context, r wire.Resource) error {
	s, err := read[wire.CertificateSpec](r)
	if err != nil {
		return err
	}
	private, err := lookup(s.Owner, s.Owner, "0600")
	if err != nil {
		return fmt.Errorf("make certificate %s: %w", s.Name, err)
	}
	if err := makeFolder(path.Dir(s.Folder), attributes{0, 0, 0o755}); err != nil {
		return err
	}
	if err := makeFolder(s.Folder, folderOf(private)); err != nil {
		return err
	}
	key, err := c.makeKey(s, private)
	if err != nil {
		return err
	}
	parts, waits := c.parts(s, key)
	if waits != nil {
		return waits
	}
	for _, p := range parts {
		if differs, err := p.differs(s); err != nil {
			return err
		} else if differs == "" {
			continue
		}
		if err := writeFile(path.Join(s.Folder, p.name), p.content, p.attributes); err != nil {
			return err
		}
	}
	return nil
}

// makeKey sees to it that there is a key with a request for it, and gives its public half.
func (certificates) makeKey(s wire.CertificateSpec, private attributes) (*ecdsa.PublicKey, error) {
	at := path.Join(s.Folder, keyFile)
	_, public, err := asked(s)
	if err != nil {
		return nil, err
	}
	text, have, err := readFile(at)
	if err != nil {
		return nil, err
	}
	if public != nil && opens(text, public) {
		if have == private {
			return public, nil
		}
		return public, writeFile(at, text, private)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make key of certificate %s: %w", s.Name, err)
	}
	request, err := pki.MakeRequest(key)
	if err != nil {
		return nil, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("make key of certificate %s: %w", s.Name, err)
	}
	for _, p := range []part{
		{certificateFile, nil, attributes{}},
		{keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), private},
		{requestFile, request, attributes{0, 0, 0o600}},
	} {
		if err := writeFile(path.Join(s.Folder, p.name), p.content, p.attributes); err != nil {
			return nil, err
		}
	}
	return &key.PublicKey, nil
}

func (certificates) Undo(_ context.Context, r wire.Resource, _ json.RawMessage) (bool, error) {
	s, err := read[wire.CertificateSpec](r)
	if err != nil {
		return false, err
	}
	p, err := walk(s.Folder)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer p.close()
	if err := p.removeAll(); err != nil {
		return false, err
	}
	above, err := walk(path.Dir(s.Folder))
	if err != nil {
		return false, err
	}
	defer above.close()
	if err := unix.Unlinkat(above.fd(), above.name, unix.AT_REMOVEDIR); err != nil && !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, unix.ENOENT) {
		return false, above.fail("remove", err)
	}
	return false, above.sync()
}

// request gives what the mesh has to sign for a certificate; nil while there is no key.
func request(_ context.Context, r wire.Resource) ([]byte, error) {
	s, err := read[wire.CertificateSpec](r)
	if err != nil {
		return nil, err
	}
	der, _, err := asked(s)
	return der, err
}
